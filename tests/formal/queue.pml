/* The queue of one lock on one master: turns, and waiters, processes and holders that stop.
 *
 * A waiter asks again at any later time. It, or a holder, may stop for ever.
 * -DNO_... removes a rule, and then an assertion or the claim `served` fails. The steps without a name are those
 * of engine/protocol/lua/queue.lua.
 */
#ifndef STOPS
#define STOPS 1        /* waiters that stop; the holder may stop as well */
#endif
#define WAITERS 3
#define NOBODY 255
#define HELD 254       /* by a client that is not a waiter */

mtype = { ABSENT, WAITING, CALLED, LATE }; /* the place of a waiter: its ticket is its number */
typedef Waiter {
  mtype place;
  bool turn;           /* its turn is not over */
  bool stopped;        /* it does not ask again, but its process still listens */
  bool gone;           /* nobody listens to its channel any more */
  bool done            /* it has had the lock */
}
Waiter waiter[WAITERS];
byte lock = HELD;
byte stops;

#define IN_FRONT(w) (waiter[w].place == CALLED || waiter[w].place == WAITING)

inline call(w) {       /* PUBLISH: a waiter to which nobody listens leaves the queue */
  if
  :: waiter[w].gone -> waiter[w].place = ABSENT; printf("STORY Nobody listens for waiter %d: it leaves the queue.\n", w + 1)
  :: else -> waiter[w].place = CALLED; waiter[w].turn = true; printf("STORY Waiter %d is called: its turn begins.\n", w + 1)
  fi
}

/* Look at the waiter v, which is in front of the others: `way` is the waiter whose turn it is. */
inline look_at(v) {
  if
  :: way != NOBODY || v == asks || (asks != NOBODY && waiter[asks].place == LATE)
  :: else ->
#ifndef NO_PATIENCE
     if
     :: waiter[v].place == CALLED && !waiter[v].turn -> waiter[v].place = LATE; printf("STORY The turn of waiter %d was not used.\n", v + 1)
     :: else
     fi;
#endif
     if
     :: waiter[v].place == WAITING && (asks == NOBODY || v < asks) -> call(v)
     :: else
     fi;
     if
     :: waiter[v].place == CALLED -> way = v
     :: else
     fi
  fi
}

/* Waiters that were called are in front, then the others by their tickets: engine/protocol/lua/queue.lua */
inline call_first() {
  way = NOBODY;
  if :: waiter[0].place == CALLED -> look_at(0) :: else fi;
  if :: waiter[1].place == CALLED -> look_at(1) :: else fi;
  if :: waiter[2].place == CALLED -> look_at(2) :: else fi;
  if :: waiter[0].place == WAITING -> look_at(0) :: else fi;
  if :: waiter[1].place == WAITING -> look_at(1) :: else fi;
  if :: waiter[2].place == WAITING -> look_at(2) :: else fi
}

inline not_overtaken(v) { /* by a waiter that came later, and is not late */
  if
  :: v < w && IN_FRONT(v) && waiter[w].place != LATE -> printf("STORY Waiter %d has overtaken waiter %d.\n", w + 1, v + 1); assert(false)
  :: else
  fi
}

inline stop(w) {
  if
  :: waiter[w].stopped = true; printf("STORY Waiter %d stops.\n", w + 1)
  :: waiter[w].stopped = true; waiter[w].gone = true; printf("STORY Waiter %d is killed.\n", w + 1)
  fi
}

inline release_lock() { /* engine/protocol/lua/release.lua */
  lock = NOBODY; asks = NOBODY;
  call_first();
  way = 0; asks = 0
}

proctype Waits(byte w) {
  byte asks, way;
  do
  :: atomic { lock != w && !waiter[w].stopped -> /* engine/protocol/lua/acquire.lua */
       asks = w; way = NOBODY;
       if :: lock == NOBODY -> call_first() :: else fi;
#ifdef NO_TURN
       way = NOBODY;
#endif
       if
       :: lock == NOBODY && way == NOBODY ->
            not_overtaken(0); not_overtaken(1); not_overtaken(2);
            lock = w; waiter[w].place = ABSENT; waiter[w].turn = false; waiter[w].done = true;
            printf("STORY Waiter %d has the lock.\n", w + 1)
       :: lock != NOBODY -> waiter[w].place = WAITING; waiter[w].turn = false
       :: lock == NOBODY && way != NOBODY -> waiter[w].place = WAITING; waiter[w].turn = false
       fi;
       asks = 0; way = 0
     }
  :: atomic { lock == w && !waiter[w].stopped -> printf("STORY Waiter %d releases the lock.\n", w + 1); release_lock(); break }
  :: atomic { stops < STOPS && !waiter[w].stopped -> stops++; stop(w); break }
  od
}

proctype Holder() {    /* it releases the lock, or has stopped already */
  byte asks, way;
  if
  :: atomic { lock == HELD -> printf("STORY The holder releases the lock.\n"); release_lock() }
  :: lock != HELD
  fi
}

#define STOPPED(w) (lock == w && waiter[w].stopped)
proctype Clock() {
end:
  do
  :: atomic { waiter[0].turn || waiter[1].turn || waiter[2].turn ->
       waiter[0].turn = false; waiter[1].turn = false; waiter[2].turn = false; printf("STORY The turn is over.\n") }
  :: atomic { lock == HELD || STOPPED(0) || STOPPED(1) || STOPPED(2) -> lock = NOBODY; printf("STORY The lock expires.\n") }
  od
}

/* Each waiter that does not stop has the lock at some time. */
ltl served { <> ((waiter[0].done || waiter[0].stopped) && (waiter[1].done || waiter[1].stopped) && (waiter[2].done || waiter[2].stopped)) }

init {
  atomic {
    waiter[0].place = WAITING; waiter[1].place = WAITING; waiter[2].place = WAITING;
    run Waits(0); run Waits(1); run Waits(2); run Holder(); run Clock()
  }
}
