/* What the models of several masters have in common: which message arrives next.
 *
 * Clients are alike, and so are masters. Of runs that differ only in who is who, one is visited: the first message
 * arrives at master 0, clients are numbered as their first messages arrive there, and the other two masters as
 * the first messages of client 0 arrive. A client or master that none reaches comes last.
 */
#define N 3
#ifdef NO_QUORUM
#define QUORUM 1
#else
#define QUORUM 2       /* engine/quorum.py::quorum */
#endif
#define LINK(c, m) link[(c) * N + (m)]
#define TO(c) (len(LINK(c, 0)) + len(LINK(c, 1)) + len(LINK(c, 2)))
#define UNDER_WAY (TO(0) OF_1(+ TO(1)) OF_2(+ TO(2)))
#if CLIENTS > 1
#define OF_1(it) it
#else
#define OF_1(it)
#endif
#if CLIENTS > 2
#define OF_2(it) it
#else
#define OF_2(it)
#endif

#ifdef EVERY_ORDER
#define IN_ORDER(c, m) true
#else
#define IN_ORDER(c, m) (m == 0 -> (c == 0 || HAS_MET(c - 1, 0)) : HAS_MET(0, m - 1) && (c == 0 || HAS_MET(0, 0)))
#endif
#define HAS_MET(c, m) (master[m].met & (1 << (c)))
#define ARRIVES(C, M) nempty(LINK(C, M)) && IN_ORDER(C, M) -> c = C; m = M

inline choose_message() {
  if
  :: ARRIVES(0, 0)
  :: ARRIVES(0, 1)
  :: ARRIVES(0, 2)
#if CLIENTS > 1
  :: ARRIVES(1, 0)
  :: ARRIVES(1, 1)
  :: ARRIVES(1, 2)
#endif
#if CLIENTS > 2
  :: ARRIVES(2, 0)
  :: ARRIVES(2, 1)
  :: ARRIVES(2, 2)
#endif
  fi;
  busy = true;
  master[m].met = master[m].met | (1 << c)
}
