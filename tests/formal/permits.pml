/* The slots of one name on three masters: clients without a queue, of which at most LIMIT may hold one.
 *
 * Each slot is a lock of its own, and `lock.pml` has what else is true of locks. Messages, replies and clients are
 * those of that model. All clocks are right. -DNO_... removes a rule, and then an assertion fails.
 */
#ifndef CLIENTS
#define CLIENTS 3
#endif
#define SLOTS 2        /* those of the largest limit of a client */
#ifndef LIMIT
#define LIMIT SLOTS    /* of these clients */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1     /* of each client; one attempt asks for one slot */
#endif
#ifndef TICKS
#define TICKS 0        /* then time stands still */
#endif
#ifndef TTL            /* -DLATE=number bounds how many replies are late */
#define TTL 1
#endif
#ifdef ENDINGS         /* so many clients give up, or release their slot */
#define ENDS (endings < ENDINGS)
#define ONE_ENDS endings++
#else
#define ENDS true
#define ONE_ENDS skip
#endif
#define WALL (ticks * 16) /* the wall clock, from which fences are proposed */

#include "network.pml"

mtype = { ACQUIRE, CONFIRM, RELEASE };
mtype = { GRANTED, REFUSED, ABSENT, DONE }; /* engine/protocol/statuses.py */

/* command, token, slot, fence */
chan link[CLIENTS * N] = [3 * ATTEMPTS] of { mtype, byte, byte, byte };

typedef Slot {         /* engine/protocol/slots.py::slot_resource */
  byte lock;           /* the token that has it; 0: free */
  byte left;           /* ticks until it expires */
  byte age;            /* ticks since it was set */
  byte fence
}
typedef Master {
  Slot slot[SLOTS];
  byte met             /* a bit for each client of which a message has arrived */
}
Master master[N];

typedef Client {
  byte token, slot;    /* those of the open round */
  bool confirms;       /* the round is the second one of its attempt */
  byte grants, best, agreeing; /* as in lock.pml */
  byte heard;          /* a bit for each master whose answer came in time */
  byte taken[SLOTS];   /* a bit for each master that has shown the slot as taken */
  byte free[SLOTS];    /* a bit for each master that had the slot free all the time: the client does not know it */
  byte valid;          /* ticks left of the lease */
  bool holds
}
Client client[CLIENTS];
byte last_fence[SLOTS];
byte ticks, late, endings, over;
bool busy;             /* a message has arrived in this tick */

#define HOLDS(c) (client[c].holds && client[c].valid > 0)
#define HOLDERS (HOLDS(0) OF_1(+ HOLDS(1)) OF_2(+ HOLDS(2)))
#define HAS(c, s) (HOLDS(c) && client[c].slot == s)
#define HOLDERS_OF(s) (HAS(0, s) OF_1(+ HAS(1, s)) OF_2(+ HAS(2, s)))
#define LOCKED(m) (master[m].slot[0].lock || master[m].slot[1].lock)
#define MASTERS(bits) (((bits) & 1) + (((bits) >> 1) & 1) + (((bits) >> 2) & 1))

/* What must hold. */

inline at_most_limit_hold() {
  if :: HOLDERS > LIMIT -> printf("STORY The limit is %d, and %d clients hold a slot.\n", LIMIT, HOLDERS) :: else fi;
  assert(HOLDERS <= LIMIT);
#ifndef LIMIT_ONLY
  if :: HOLDERS_OF(client[c].slot) > 1 -> printf("STORY Two clients hold slot %d.\n", client[c].slot) :: else fi;
  assert(HOLDERS_OF(client[c].slot) == 1);
#endif
  skip
}

inline fences_grow() { /* those of each slot */
#ifndef LIMIT_ONLY
  if
  :: client[c].best <= last_fence[client[c].slot] ->
       printf("STORY The fence is not above %d.\n", last_fence[client[c].slot]); assert(false)
  :: else
  fi;
  last_fence[client[c].slot] = client[c].best;
#endif
  skip
}

inline was_not_free(s) {
  if
  :: s < LIMIT && MASTERS(client[c].free[s] & client[c].heard) >= QUORUM ->
       printf("STORY Client %d is refused, and slot %d was free on a majority throughout.\n", c + 1, s); assert(false)
  :: else
  fi
}

inline nothing_is_left() { /* no slot expires for that */
  if
#ifndef LIMIT_ONLY
  :: over == CLIENTS && UNDER_WAY == 0 && (LOCKED(0) || LOCKED(1) || LOCKED(2)) ->
       printf("STORY All is done, and a slot is left.\n"); assert(false)
#endif
  :: else
  fi
}

inline no_slot_outlives_its_ttl(m, s) {
  if
  :: master[m].slot[s].lock && master[m].slot[s].age >= TTL ->
       printf("STORY Master %d still has slot %d after its TTL.\n", m + 1, s); assert(false)
  :: else
  fi
}

/* The scripts. Each runs in one step of its master. */

#ifdef NO_COMPARISON
#define IS_FREE true
#else
#define IS_FREE (master[m].slot[slot].lock == 0)
#endif

inline set_lock() {    /* engine/protocol/lua/set_locks.lua */
  master[m].slot[slot].lock = token; master[m].slot[slot].left = TTL; master[m].slot[slot].age = 0;
  if :: c != 0 -> client[0].free[slot] = client[0].free[slot] & ~(1 << m) :: else fi;
#if CLIENTS > 1
  if :: c != 1 -> client[1].free[slot] = client[1].free[slot] & ~(1 << m) :: else fi;
#endif
#if CLIENTS > 2
  if :: c != 2 -> client[2].free[slot] = client[2].free[slot] & ~(1 << m) :: else fi
#endif
}

inline note_free(s) {  /* from the first message of the call on, until set_lock ends it */
  if :: master[m].slot[s].lock == 0 -> client[c].free[s] = client[c].free[s] | (1 << m) :: else fi
}

inline run_acquire() { /* engine/protocol/lua/acquire.lua */
#ifdef NO_SLOTS        /* each master admits so many clients, whatever slot they ask for */
  slot = (master[m].slot[0].lock == 0 -> 0 : 1);
#endif
  if :: token == c * ATTEMPTS + 1 && token == client[c].token -> note_free(0); note_free(1) :: else fi;
  fence = master[m].slot[slot].fence + 1;
  if
  :: IS_FREE ->
       if :: fence < WALL -> fence = WALL :: else fi;
       master[m].slot[slot].fence = fence; set_lock(); status = GRANTED
  :: else -> status = REFUSED
  fi
}

inline run_confirm() { /* engine/protocol/lua/confirm.lua */
  if
  :: master[m].slot[slot].lock == token ->
       if :: master[m].slot[slot].fence < fence -> master[m].slot[slot].fence = fence :: else fi;
       status = GRANTED
  :: else -> status = ABSENT
  fi
}

inline free_slot(m, s) {
  master[m].slot[s].lock = 0; master[m].slot[s].left = 0; master[m].slot[s].age = 0
}

inline run_release() { /* engine/protocol/lua/release.lua */
  if :: master[m].slot[slot].lock == token -> free_slot(m, slot) :: else fi;
  status = DONE
}

inline note_taken(s) { /* engine/slot_choice.py::SlotChoice.note */
  if :: master[m].slot[s].lock -> client[c].taken[s] = client[c].taken[s] | (1 << m) :: else fi
}

inline count_vote() {  /* engine/quorum.py::Tally.cast */
  if :: kind == ACQUIRE -> client[c].heard = client[c].heard | (1 << m) :: else fi;
  if
  :: status == GRANTED ->
       client[c].grants++;
       if
       :: fence > client[c].best -> client[c].best = fence; client[c].agreeing = 1
       :: fence == client[c].best -> client[c].agreeing++
       :: else
       fi
  :: status == REFUSED ->
       note_taken(0); note_taken(1);
       if :: fence > client[c].best -> client[c].best = fence; client[c].agreeing = 0 :: else fi
  :: else
  fi
}

inline serve() {
  if
  :: kind == ACQUIRE -> run_acquire()
  :: kind == CONFIRM -> run_confirm()
  :: kind == RELEASE -> run_release()
  fi;
  printf("STORY Master %d: %e of slot %d by client %d (token %d): %e, fence %d.\n", m + 1, kind, slot, c + 1, token, status, fence);
  if
  :: token == client[c].token && (kind == CONFIRM) == client[c].confirms && (status == GRANTED || status == REFUSED) ->
       if
       :: count_vote()
#ifdef LATE
       :: late < LATE -> late++; printf("STORY The client does not get this reply in time.\n")
#else
       :: printf("STORY The client does not get this reply in time.\n")
#endif
       fi
  :: else
  fi;
  nothing_is_left()
}

proctype Network() {
  byte c, m; mtype kind, status; byte token, slot, fence;
end:
  do
  :: atomic {
       choose_message(); LINK(c, m)?kind, token, slot, fence; serve();
       c = 0; m = 0; kind = 0; token = 0; slot = 0; fence = 0; status = 0
     }
  od
}

inline send_to(m, what) {
  LINK(c, m)!what, client[c].token, client[c].slot, client[c].best
}

/* A release that would change nothing, and is the only message, is not sent. */
inline release_at(m) {
  if
  :: len(LINK(c, m)) == 0 && master[m].slot[client[c].slot].lock != client[c].token
  :: else -> send_to(m, RELEASE)
  fi
}

inline hold_slot() {
  client[c].holds = true;
  printf("STORY Client %d holds slot %d (fence %d, ticks left: %d).\n", c + 1, client[c].slot, client[c].best, client[c].valid);
  at_most_limit_hold();
  fences_grow();
  client[c].grants = 0; client[c].agreeing = 0; client[c].heard = 0; client[c].confirms = false; client[c].best = 0;
  forget_slots()
}

inline forget_slots() {
  client[c].taken[0] = 0; client[c].taken[1] = 0; client[c].free[0] = 0; client[c].free[1] = 0
}

inline release_or_undo() { /* engine/rounds.py::release, engine/attempt.py::Attempt.undo */
  client[c].best = 0;
#ifdef NO_UNDO
  if
  :: !client[c].holds -> printf("STORY Client %d gives up.\n", c + 1)
  :: else ->
#endif
  printf("STORY Client %d releases slot %d (token %d).\n", c + 1, client[c].slot, client[c].token);
  release_at(0); release_at(1); release_at(2)
#ifdef NO_UNDO
  fi
#endif
  ;
  client[c].holds = false; client[c].valid = 0; client[c].token = 0; client[c].slot = 0; client[c].confirms = false;
  client[c].grants = 0; client[c].agreeing = 0
}

/* A slot may be free if so few masters have shown it as taken: engine/slot_choice.py::SlotChoice.note. A master that
 * has not answered counts as taken only where a call is refused: whether it failed, nobody knows.
 */
#ifdef NO_MAJORITY
#define MAY_BE_FREE(s, more) (s < LIMIT && client[c].taken[s] == 0)
#else
#define MAY_BE_FREE(s, more) (s < LIMIT && N - MASTERS(client[c].taken[s] | more) >= QUORUM)
#endif
#define UNHEARD (7 & ~client[c].heard)

inline end_call() {
  client[c].heard = 0; forget_slots(); over++; nothing_is_left()
}

inline choose_slot() { /* engine/slot_choice.py::SlotChoice.resource */
#ifdef NO_OWN_LIMIT
  /* A master may call a waiter for a slot of a larger limit. */
  if :: client[c].slot = 0 :: client[c].slot = 1 fi
#else
  if
  :: MAY_BE_FREE(0, 0) -> client[c].slot = 0
  :: MAY_BE_FREE(1, 0) && (c != 0 || attempt > 0) -> client[c].slot = 1 /* slots are alike: the first is 0 */
  fi
#endif
}

proctype Caller(byte c) {
  byte attempt;

end_idle:
  atomic {             /* engine/attempt.py::Wait.next_attempt */
    attempt > 0 || !busy -> /* What arrives does not matter to a client that has not begun. */
    choose_slot();
    attempt++; client[c].heard = 0; client[c].token = c * ATTEMPTS + attempt; client[c].valid = TTL;
    send_to(0, ACQUIRE); send_to(1, ACQUIRE); send_to(2, ACQUIRE);
    printf("STORY Client %d asks for slot %d (token %d).\n", c + 1, client[c].slot, client[c].token)
  };
end_round:
  if
#ifdef NO_CONFIRM
  :: atomic { client[c].grants >= QUORUM && client[c].valid > 0 -> hold_slot() }
#else
  :: atomic { client[c].grants >= QUORUM && client[c].agreeing >= QUORUM && client[c].valid > 0 -> hold_slot() }
  :: atomic { client[c].grants >= QUORUM && client[c].agreeing < QUORUM -> /* engine/fencing.py::stored_by_majority */
       client[c].confirms = true; client[c].grants = 0; client[c].agreeing = 0;
       send_to(0, CONFIRM); send_to(1, CONFIRM); send_to(2, CONFIRM);
       printf("STORY Client %d confirms fence %d.\n", c + 1, client[c].best)
     };
end_confirm:
     if
     :: atomic { client[c].grants >= QUORUM && client[c].valid > 0 -> hold_slot() }
     :: atomic { ENDS -> ONE_ENDS; release_or_undo(); goto again }
     fi
#endif
  :: atomic { ENDS -> ONE_ENDS; release_or_undo(); goto again }
  fi;
end_lease:
  atomic { ENDS -> ONE_ENDS; release_or_undo(); end_call(); goto ends };
again:                 /* engine/attempt.py::Wait.goes_on */
  if
  :: atomic { !MAY_BE_FREE(0, UNHEARD) && !MAY_BE_FREE(1, UNHEARD) -> was_not_free(0); was_not_free(1); end_call() }
  :: atomic { attempt < ATTEMPTS && (MAY_BE_FREE(0, 0) || MAY_BE_FREE(1, 0)) -> goto end_idle }
  :: atomic { true -> end_call() } /* too few masters answered, or its time is over */
  fi;
ends:
  skip
}

inline tick_slot(m, s) {
  if
  :: master[m].slot[s].lock ->
       master[m].slot[s].age++;
#ifndef NO_TTL
       master[m].slot[s].left--;
#endif
       if :: master[m].slot[s].left == 0 -> free_slot(m, s); printf("STORY Slot %d of master %d expires.\n", s, m + 1) :: else fi;
       no_slot_outlives_its_ttl(m, s)
  :: else
  fi
}

inline tick_client(c) {
  if :: client[c].valid > 0 -> client[c].valid-- :: else fi
}

proctype Clock() {
end:
  do
  :: d_step {
       ticks < TICKS -> ticks++; busy = false;
       printf("STORY One tick passes.\n");
       tick_slot(0, 0); tick_slot(0, 1); tick_slot(1, 0); tick_slot(1, 1); tick_slot(2, 0); tick_slot(2, 1);
       tick_client(0);
#if CLIENTS > 1
       tick_client(1);
#endif
#if CLIENTS > 2
       tick_client(2)
#endif
     }
  od
}

init {
  atomic {
    run Network(); run Caller(0);
#if CLIENTS > 1
    run Caller(1);
#endif
#if CLIENTS > 2
    run Caller(2);
#endif
    run Clock()
  }
}
