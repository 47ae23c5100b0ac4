/* One lock on three masters: acquire, confirm, extend, heal, release, undo, expiry, restart.
 *
 * Time is counted in ticks of a true clock, and the TTL of the lock is so many ticks. A message of a link
 * arrives in order, at any later time or never; a reply arrives or is late, as the network chooses. A client
 * may end a round, or stop for ever, at any time. -DNO_... removes a rule, and then an assertion fails.
 * The name in a comment, such as engine/quorum.py::quorum, is what a step stands for.
 */
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1     /* of each client */
#endif
#ifndef EXTENSIONS
#define EXTENSIONS 0   /* of each lease */
#endif
#ifndef RESTARTS
#define RESTARTS 0     /* of any master */
#endif
#ifndef LOSSES
#define LOSSES 0       /* messages that are lost although later ones arrive */
#endif
#ifndef BREAKS
#define BREAKS 0       /* releases that are sent on other links than their acquire */
#endif
#ifndef TICKS
#define TICKS 2        /* then time stands still */
#endif
#ifndef TTL
#define TTL 2
#endif
#ifdef NO_DRIFT
#define VALID TTL
#else
#define VALID (TTL - 1) /* engine/validity.py::valid_until; drift is one tick */
#endif
#ifdef NO_RESTART_DELAY
#define DELAY(m) 0
#else
#define DELAY(m) (TTL - master[m].fast) /* by the clock of the master */
#endif
#define WALL (ticks * 16) /* the wall clock, from which fences are proposed: more than there are grants in a tick */

#include "network.pml"

mtype = { ACQUIRE, CONFIRM, EXTEND, HEAL, RELEASE, BURY };
mtype = { GRANTED, REFUSED, ABSENT, NOT_READY, BURIED, DONE }; /* engine/protocol/statuses.py */

/* command, token, round, fence */
chan link[CLIENTS * N] = [ATTEMPTS * (3 + EXTENSIONS)] of { mtype, byte, byte, byte };

typedef Master {
  byte lock;           /* the token that has it; 0: free */
  byte left;           /* ticks until it expires */
  byte age;            /* ticks since it was set or extended */
  byte fence;
  byte ready;          /* ticks until the votes of this master count; UNMARKED: it has no marker */
  byte tombs;          /* a bit for each token with a tombstone */
  bool fast;           /* its clock gains one tick in the TTL of a lock */
  byte met             /* a bit for each client of which a message has arrived */
}
#define UNMARKED 255
Master master[N];

typedef Client {
  byte token, round;   /* those that are open */
  byte grants;         /* counted votes of the round */
  byte best;           /* the highest fence that a master answered */
  byte agreeing;       /* granting masters that have stored it */
  byte refused;        /* a bit for each master that is sure not to have the lock */
  byte forgot;         /* a bit for each master that answered that it has forgotten the lock */
  byte valid;          /* ticks left of the lease, by the clock of the client */
  byte extended;       /* the same of the lease as extended, if the extension is won */
  bool holds
}
Client client[CLIENTS];
byte last_fence;       /* that of the last grant */
byte ticks, restarts, losses, breaks, late, over;
bool busy;             /* a message has arrived in this tick */

#define HOLDS(c) (client[c].holds && client[c].valid > 0)
#define HOLDERS (HOLDS(0) OF_1(+ HOLDS(1)) OF_2(+ HOLDS(2)))
#define LOCKED (master[0].lock || master[1].lock || master[2].lock)

/* What must hold. */

inline exactly_one_holds() {
  if :: HOLDERS > 1 -> printf("STORY Two clients hold the lock.\n") :: else fi;
  assert(HOLDERS == 1)
}

inline fences_grow(fence) {
#ifndef EXCLUSION_ONLY
  if :: fence <= last_fence -> printf("STORY The fence is not above %d.\n", last_fence) :: else fi;
  assert(fence > last_fence);
  last_fence = fence;
#endif
  skip
}

/* Once all clients are done and all their messages have arrived, no lock is left. No lock expires for that. */
inline nothing_is_left() {
  if
#ifndef EXCLUSION_ONLY
  :: over == CLIENTS && UNDER_WAY == 0 && losses == 0 && LOCKED ->
       printf("STORY All is done, and a lock is left.\n"); assert(false)
#endif
  :: else
  fi
}

inline no_lock_outlives_its_ttl(m) {
  if :: master[m].lock && master[m].age >= TTL -> printf("STORY Master %d still has a lock after its TTL.\n", m + 1) :: else fi;
  assert(!master[m].lock || master[m].age < TTL)
}

/* The scripts. Each runs in one step of its master. */

inline set_lock(m) {    /* engine/protocol/lua/set_locks.lua */
  master[m].lock = token; master[m].left = TTL - master[m].fast; master[m].age = 0
}

inline free_lock(m) {
  master[m].lock = 0; master[m].left = 0; master[m].age = 0
}

inline raise_fence() {
  if :: master[m].fence < fence -> master[m].fence = fence :: else fi
}

inline run_acquire() { /* engine/protocol/lua/acquire.lua; the proposal is cut to the clock of the master */
  if
  :: master[m].tombs & (1 << token) -> status = BURIED
  :: else ->
     if
     :: master[m].lock == 0 ->
          fence = WALL;
          if :: fence <= master[m].fence -> fence = master[m].fence + 1 :: else fi;
          master[m].fence = fence; set_lock(m); status = GRANTED
     :: else -> fence = master[m].fence + 1; status = REFUSED
     fi
  fi
}

inline run_confirm() { /* engine/protocol/lua/confirm.lua */
  if
  :: master[m].lock == token -> raise_fence(); status = GRANTED
  :: master[m].lock == 0 -> status = ABSENT
  :: else -> status = REFUSED
  fi
}

inline run_extend() {  /* engine/protocol/lua/extend.lua */
  if
  :: master[m].lock == token -> set_lock(m); status = GRANTED
  :: master[m].lock == 0 -> status = ABSENT
  :: master[m].lock != 0 && master[m].lock != token -> status = REFUSED
  fi
}

inline run_heal() {    /* engine/protocol/lua/heal.lua; its grant does not count: engine/protocol/commands.py::Heal */
  if
  :: master[m].tombs & (1 << token) -> status = BURIED
  :: else ->
     if
     :: master[m].lock == 0 || master[m].lock == token ->
          set_lock(m); raise_fence(); status = DONE
     :: else -> status = REFUSED
     fi
  fi
}

inline run_release() { /* engine/protocol/lua/release.lua; it needs no marker */
  status = DONE;
#ifdef NO_TOKEN
  free_lock(m);
#else
  if :: master[m].lock == token -> free_lock(m) :: else fi;
#endif
#ifndef NO_TOMBSTONE
  if :: kind == BURY -> master[m].tombs = master[m].tombs | (1 << token) :: else fi
#endif
}

/* Other replies change nothing in the client. */
#if EXTENSIONS > 0
#define IS_VOTE (status == GRANTED || status == REFUSED || status == ABSENT)
#else
#define IS_VOTE (status == GRANTED || status == REFUSED && kind == ACQUIRE)
#endif

/* A vote is counted in the round that it answers: engine/quorum.py::Tally.cast. */
inline count_vote() {
  if
  :: status == GRANTED ->
       client[c].grants++;
       if
       :: fence > client[c].best -> client[c].best = fence; client[c].agreeing = 1
       :: fence == client[c].best -> client[c].agreeing++
       :: else
       fi
  :: status == REFUSED ->
       client[c].refused = client[c].refused | (1 << m);
       if :: kind == ACQUIRE && fence > client[c].best -> client[c].best = fence; client[c].agreeing = 0 :: else fi
  :: status == ABSENT && kind != CONFIRM -> client[c].forgot = client[c].forgot | (1 << m)
  :: else
  fi
}

inline serve() {
  if
  :: kind == RELEASE || kind == BURY -> run_release()
  :: !(kind == RELEASE || kind == BURY) && master[m].ready > 0 -> status = NOT_READY /* engine/protocol/lua/trusted.lua */
  :: kind == ACQUIRE && master[m].ready == 0 -> run_acquire()
  :: kind == CONFIRM && master[m].ready == 0 -> run_confirm()
  :: kind == EXTEND && master[m].ready == 0 -> run_extend()
  :: kind == HEAL && master[m].ready == 0 -> run_heal()
  fi;
  printf("STORY Master %d: %e of client %d (token %d): %e, fence %d.\n", m + 1, kind, c + 1, token, status, fence);
  if
  :: token == client[c].token && round == client[c].round && IS_VOTE ->
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
  byte c, m; mtype kind, status; byte token, round, fence;
end:
  do
  :: atomic {
       choose_message();
       if
       :: LINK(c, m)?kind, token, round, fence -> serve()
#if BREAKS > 0
       :: LINK(c, m)??BURY, token, round, fence -> kind = BURY; serve() /* on another link: in any order */
#endif
#if LOSSES > 0
       :: losses < LOSSES -> LINK(c, m)?kind, token, round, fence; losses++;
            printf("STORY %e of client %d to master %d is lost.\n", kind, c + 1, m + 1)
#endif
       fi;
       c = 0; m = 0; kind = 0; token = 0; round = 0; fence = 0; status = 0
     }
  od
}

inline send_to(m, what) {
  LINK(c, m)!what, client[c].token, client[c].round, fence
}

inline open_round() {
  client[c].round++; client[c].grants = 0; client[c].best = 0; client[c].agreeing = 0
}

inline extend_or_heal(m) {
  if
  :: forgot & (1 << m) -> send_to(m, HEAL); client[c].refused = client[c].refused & ~(1 << m) /* it may have the lock now */
  :: else -> send_to(m, EXTEND)
  fi
}

/* What is released, and has left nothing to arrive or to release, needs no message: it would change nothing. */
#if defined(NO_TOKEN) || defined(EVERY_ORDER)
#define NOTHING_AT(m) false
#else
#define NOTHING_AT(m) (how == RELEASE && len(LINK(c, m)) == 0 && master[m].lock != client[c].token)
#endif

inline release_at(m) { /* not where it is sure not to be: engine/quorum.py::Tally.reached */
  if
  :: (client[c].refused & (1 << m)) || NOTHING_AT(m)
  :: else -> send_to(m, how)
  fi
}

inline hold_lock() {
  client[c].holds = true;
  printf("STORY Client %d holds the lock (fence %d, ticks left: %d).\n", c + 1, client[c].best, client[c].valid);
  exactly_one_holds();
  fences_grow(client[c].best);
#if EXTENSIONS == 0
  client[c].round = 0; client[c].refused = 0;
#endif
  fence = client[c].best; client[c].grants = 0; client[c].best = 0; client[c].agreeing = 0
}

/* engine/rounds.py::release, engine/attempt.py::Attempt.undo. Then a next attempt may begin. A release that is sent
 * only after a late grant, or before the next attempt (engine/undo.py::leaves_late_grants), is one that arrives late.
 */
inline release_or_undo() {
#ifdef NO_UNDO
  if
  :: !client[c].holds -> printf("STORY Client %d gives up.\n", c + 1)
  :: client[c].holds ->
#endif
  how = RELEASE;
#if BREAKS > 0
  if
  :: breaks < BREAKS -> breaks++; how = BURY; printf("STORY The links of client %d break.\n", c + 1)
  :: true
  fi;
#endif
  client[c].round = 0; fence = 0;
  printf("STORY Client %d releases token %d.\n", c + 1, client[c].token);
  release_at(0); release_at(1); release_at(2)
#ifdef NO_UNDO
  fi
#endif
  ;
  client[c].holds = false; client[c].valid = 0; client[c].extended = 0;
  client[c].token = 0; client[c].round = 0; client[c].best = 0; client[c].grants = 0; client[c].agreeing = 0;
  client[c].forgot = 0; client[c].refused = 0; extension = 0; fence = 0; how = 0;
  if
  :: attempt == ATTEMPTS -> over++; nothing_is_left()
  :: else
  fi
}

proctype Caller(byte c) {
  byte attempt, extension, forgot, fence; mtype how;

end_idle:
  atomic {             /* engine/attempt.py::Wait.next_attempt: a new token, the clock is read, all masters are asked */
    /* What arrives does not matter to a client that has not begun, so it does that at the begin of a tick. */
    attempt > 0 || !busy -> attempt++;
    client[c].token = c * ATTEMPTS + attempt; client[c].valid = VALID;
    open_round(); send_to(0, ACQUIRE); send_to(1, ACQUIRE); send_to(2, ACQUIRE);
    printf("STORY Client %d asks all masters (token %d).\n", c + 1, client[c].token)
  };
  /* It waits for votes as long as it likes: engine/attempt.py::Attempt.judge */
  if
#ifdef NO_CONFIRM
  :: atomic { client[c].grants >= QUORUM && client[c].valid > 0 -> hold_lock() }
#else
  :: atomic { client[c].grants >= QUORUM && client[c].agreeing >= QUORUM && client[c].valid > 0 -> hold_lock() }
  :: atomic { client[c].grants >= QUORUM && client[c].agreeing < QUORUM -> /* engine/fencing.py::stored_by_majority */
       fence = client[c].best; open_round(); send_to(0, CONFIRM); send_to(1, CONFIRM); send_to(2, CONFIRM);
       client[c].best = fence;
       printf("STORY Client %d confirms fence %d.\n", c + 1, fence)
     };
     if
     :: atomic { client[c].grants >= QUORUM && client[c].valid > 0 -> client[c].best = fence; hold_lock() }
     :: atomic { true -> release_or_undo(); goto again }
     fi
#endif
  :: atomic { true -> release_or_undo(); goto again }
  fi;
  do
#if EXTENSIONS > 0
  :: atomic { extension < EXTENSIONS && HOLDS(c) -> /* engine/rounds.py::extend */
       extension++; forgot = client[c].forgot; client[c].forgot = 0; client[c].extended = VALID;
       open_round(); extend_or_heal(0); extend_or_heal(1); extend_or_heal(2);
       forgot = 0;
       printf("STORY Client %d asks for more time.\n", c + 1)
     };
     if
     :: atomic { client[c].grants >= QUORUM && HOLDS(c) && client[c].extended > 0 ->
          client[c].valid = client[c].extended; client[c].extended = 0;
          printf("STORY Client %d has more time; ticks left: %d.\n", c + 1, client[c].valid);
          exactly_one_holds()
        }
     :: atomic { true -> client[c].extended = 0 }
     fi
#endif
  :: atomic { true -> release_or_undo(); break }
  od;
again:
  if
  :: attempt < ATTEMPTS -> goto end_idle
  :: else
  fi
}

inline tick_master(m) {
  if :: master[m].ready > 0 && master[m].ready != UNMARKED -> master[m].ready-- :: else fi;
  if
  :: master[m].lock ->
       master[m].age++;
#ifndef NO_TTL
       master[m].left--;
#endif
       if :: master[m].left == 0 -> free_lock(m); printf("STORY The lock on master %d expires.\n", m + 1) :: else fi;
       no_lock_outlives_its_ttl(m)
  :: else
  fi
}

inline tick_client(c) {
  if :: client[c].valid > 0 -> client[c].valid-- :: else fi;
  if :: client[c].extended > 0 -> client[c].extended-- :: else fi
}

proctype Clock() {
end:
  do
  :: d_step {
       ticks < TICKS -> ticks++; busy = false;
       printf("STORY One tick passes.\n");
       tick_master(0); tick_master(1); tick_master(2);
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

#if RESTARTS > 0
/* A master restarts without its data and its marker. A client that meets it writes a marker:
 * engine/protocol/lua/join.lua. */
proctype Restart(byte m) {
end:
  do
  :: d_step {
       restarts < RESTARTS -> restarts++;
       free_lock(m); master[m].fence = 0; master[m].tombs = 0; master[m].ready = UNMARKED;
       printf("STORY Master %d restarts, and has forgotten all.\n", m + 1);
     }
  :: d_step {
       master[m].ready == UNMARKED -> master[m].ready = DELAY(m);
       printf("STORY Master %d gets a new marker: ticks until its votes count: %d.\n", m + 1, master[m].ready);
     }
  od
}
#endif

init {
  atomic {
#if TICKS > 0
    if :: master[0].fast = true :: skip fi;
    if :: master[1].fast = true :: skip fi;
    if :: master[2].fast = true :: skip fi;
#endif
    run Network(); run Caller(0);
#if CLIENTS > 1
    run Caller(1);
#endif
#if CLIENTS > 2
    run Caller(2);
#endif
#if RESTARTS > 0
    run Restart(0); run Restart(1); run Restart(2);
#endif
    run Clock()
  }
}
