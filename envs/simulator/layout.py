"""Where everything lies in the state block of the core.

The block is a run of 64-bit words: a header (H_…), vectors over instances that decisions scan (structure of arrays),
one row per engine (E_…), per-engine arrays, and last the slots (S_…), one 64-byte line per request in flight, which
are recycled. Regions are found through word offsets in the header, so that a copy of the block is a working state.
Tables that never change (specs, trace columns, failure schedule) lie outside and are reached by address.
"""

from __future__ import annotations

import itertools

FOREVER = (1 << 63) - 1
"""Time that never comes."""

LANES = 8
"""Vectors over instances are padded to whole groups of this many words."""

STRIP_SHIFT = 5
STRIP = 1 << STRIP_SHIFT
"""Batch arrays are walked in strips of so many words: few, long iterations, whose number is easy to predict.

The first strips of all arrays lie together, then the second ones, …: batches seldom fill more than one or two, and so
touch few pages.
"""

_count = itertools.count
KEY_SHIFT = 24
KEY_MASK = (1 << KEY_SHIFT) - 1
"""Batch keys are step << KEY_SHIFT | slot: the minimum is the next sequence to finish."""

# --- header -------------------------------------------------------------------------------------------------
_h = _count()
H_PREFILLS = next(_h)  # P (0 when aggregated)
H_DECODES = next(_h)  # D, or M mixed instances
H_ENGINES = next(_h)  # P + D
H_ROUTED = next(_h)  # rows of the prefill ledger: P, or M
H_WAKE_PAD = next(_h)  # leaves of the tree of wake-up times
H_PRE_GROUPS = next(_h)  # groups of eight prefill rows, decode rows
H_DEC_GROUPS = next(_h)
H_ROUTERS = next(_h)
H_MIXED = next(_h)  # 1: aggregated
H_FIRST_PREFILL = next(_h)  # 1: the client's first token comes from prefill
H_REROUTE = next(_h)  # 1: on_kill = reroute
H_STRICT = next(_h)  # 1: step ends and passes of an instant are never fused
H_POLL = next(_h)  # poll interval, ps
H_BLOCK = next(_h)  # block size, tokens
H_BLOCK_SHIFT = next(_h)  # its logarithm if it is a power of two, else −1
H_REQUESTS = next(_h)  # requests in the trace
H_NEXT = next(_h)  # next request to arrive
H_ARRIVAL = next(_h)  # its arrival, ps
H_NOW = next(_h)
H_VISIBLE = next(_h)  # time of the poll that the next decision sees
H_EVENT = next(_h)  # next entry of the failure schedule
H_EVENT_TIME = next(_h)
H_EVENTS = next(_h)
H_PENDING = next(_h)  # slot that waits for a decision, −1 if none
H_OPEN_PREFILLS = next(_h)  # instances that may be assigned
H_OPEN_DECODES = next(_h)
H_LOST = next(_h)  # list of slots to be re-routed at this instant, by request index
H_DECISIONS = next(_h)  # decisions made
H_ENDED = next(_h)  # requests that have ended
H_LIVE = next(_h)  # slots in use
H_FREE_SLOT = next(_h)  # list of recycled slots
H_HIGH = next(_h)  # slots ever used
H_CAPACITY = next(_h)  # slots that fit
H_WORDS = next(_h)  # size of the block, words
# addresses of tables outside the block
H_TRACE = next(_h)  # one row per request
H_T_EVENTS = next(_h)
H_T_LATENCY = next(_h)
H_RECORDS = next(_h)
H_RECORD_STRIDE = next(_h)  # bytes; 0: every request writes to one scratch row
# of a simulator whose steps are told (stepping.py), addresses; 0 in others
H_FATES = next(_h)  # deadlines of requests in flight (deadlines.py)
H_ENTRIES = next(_h)  # where entries (N_…) begin, backwards
H_MARKS = next(_h)  # where records are not kept, a bit per slot: 1 if it is free
H_ROWS = next(_h)  # 1: records are not kept; those of requests in flight lie behind their slots
H_READ = next(_h)  # entries of the log that were read
H_DECISION_LOG = next(_h)  # 0: none
H_CONSTANTS = next(_h)  # the router's constants, vectors of float64
H_ABOUT = next(_h)  # the router's constants as features read them, one row of float64 per instance
H_PARAMETERS = next(_h)  # the policy's parameters, float64
H_LEARNS = next(_h)  # LEARN_…
# word offsets of regions inside the block
H_O_WAKE = next(_h)
H_O_LEAP = next(_h)
H_O_LEDGER = next(_h)
H_O_ENGINES = next(_h)
H_O_PHASES = next(_h)
H_O_LEARNER = next(_h)
H_O_POLICY = next(_h)
H_O_BATCH = next(_h)
H_O_CROSS = next(_h)
H_O_SLOTS = next(_h)
# strides, words
H_SLOT_BYTES = next(_h)  # from one slot to the next
H_PHASE_STRIDE = next(_h)
H_STRIP_STRIDE = next(_h)  # from one strip of an array to the next
H_LEDGER_STRIDE = next(_h)  # one router's ledger
H_LEDGER_DECODE = next(_h)  # where its decode rows begin
H_LOG = next(_h)  # address of the log of ended requests, 0: none
H_LOGGED = next(_h)
H_LAST = next(_h)  # each router's last admission, ps, −1 if none: MAX_ROUTERS words
HEADER_WORDS = 88

# --- rows by instance ------------------------------------------------------------------------------------------
# What decisions scan is grouped by eight instances: a group holds eight words of each field, so that one field of
# eight instances is a vector, and one instance's fields lie at fixed distances from each other. Constants are these
# distances.
(
    LEAP_START,  # time at which the leap started
    LEAP_FIRST,  # ps of its first step
    LEAP_GROWTH,  # ps by which each further one is longer
    LEAP_STEPS,  # planned steps
    LEAP_DONE,  # steps completed before it
    LEAP_NOW,  # steps completed at the last sync
    LEAP_GROUP,
) = range(0, 56, 8)

(
    PRE_QUEUED,
    PRE_TOKENS,
    PRE_STRICT,
    PRE_OPEN,
    PRE_COST,
    PRE_GROUP,
) = range(0, 48, 8)

(
    DEC_IN_FLIGHT,
    DEC_PENDING,
    DEC_FRESH,  # of the pending: joined at the start of the leap, so they have a token once it has made a step
    DEC_COMMITTED,
    DEC_OUTPUT,  # Σ predicted output
    DEC_STATIC,  # Σ max(0, ô − g) of the requests that do not stream
    DEC_CROSS_SUM,  # streaming requests with g < ô: Σ X and count, X = step at which g reaches ô
    DEC_CROSS_COUNT,
    DEC_CROSS_MIN,  # the smallest of their keys
    DEC_CONTEXT,  # Σ (prompt + g), less step · streams
    DEC_STREAMS,
    DEC_STRICT,
    DEC_OPEN,
    DEC_COST,
    DEC_GROUP,
) = range(0, 120, 8)
# …_OPEN: 0.0 if requests may be assigned, else +inf (float64); …_COST: scratch for the policy's scores; …_GROUP: words

# --- learner, per router: (count, sum) pairs; classes × 32 prompt buckets, then classes, then all, then regression --
BUCKETS = 32
LEARN_NONE, LEARN_BUCKET, LEARN_PROMPT_BUCKET, LEARN_PROMPT_REGRESSION = range(4)
CLASSES = 2
LEARNER_CLASS = 2 * CLASSES * BUCKETS
LEARNER_ALL = LEARNER_CLASS + 2 * CLASSES
LEARNER_FIT = LEARNER_ALL + 2  # Σp, Σp², Σpo
LEARNER_WORDS = LEARNER_FIT + 6

POLICY_WORDS = 48
"""Words of mutable state that a compiled policy has, per router."""

# --- spec row: one engine's constants ---------------------------------------------------------------------------
_p = _count()
P_BASE_DECODE = next(_p)
P_BASE_PREFILL = next(_p)
P_BASE_MIXED = next(_p)
P_CONTEXT = next(_p)
P_TOKEN = next(_p)
P_SQUARE = next(_p)
P_BLOCKS = next(_p)
P_SEQS = next(_p)
P_BUDGET = next(_p)
P_EGRESS = next(_p)
P_LEASE = next(_p)
P_BATCH = next(_p)  # address of A[0 … max_num_seqs]
SPEC_WORDS = 16

# --- engine row ----------------------------------------------------------------------------------------------------
_e = _count()
E_SPEC = next(_e)  # address of its spec row
E_STATE = next(_e)  # STATE_…
E_BUSY = next(_e)  # 1 while a step runs
E_FREE = next(_e)  # free blocks
E_QUEUE = next(_e)  # waiting queue: head, tail, length
E_QUEUE_TAIL = next(_e)
E_QUEUED = next(_e)
E_CHUNKS = next(_e)  # sequences with a prefill chunk in this step: head, tail, length
E_CHUNKS_TAIL = next(_e)
E_CHUNKED = next(_e)
E_JOINS = next(_e)  # counts joins; numbers the order of joining
E_POLLED = next(_e)  # last poll: its time, and what it saw
E_POLL_USED = next(_e)
E_POLL_RUNNING = next(_e)
E_POLL_WAITING = next(_e)
# prefill
E_RELEASE = next(_e)  # list of slots whose blocks are freed at their TE, by TE
E_RELEASE_TAIL = next(_e)
E_EGRESS = next(_e)  # when the egress server is free
# decode
E_BATCH = next(_e)  # B
E_OLD = next(_e)  # of them: had their first step before this leap
E_BASE = next(_e)  # Σ (prompt + output − finish step): K = E_BASE + B · steps completed
E_NEXT_FINISH = next(_e)  # smallest batch key
E_HOLD = next(_e)  # list of reserved requests in order of reservation
E_HOLD_TAIL = next(_e)
E_HELD = next(_e)
E_HOLD_TIME = next(_e)  # earliest transfer end among them
ENGINE_WORDS = 32
STATE_DOWN, STATE_UP, STATE_DRAINING = range(3)

# --- slot: 16 int32 cells (S_…), some of them int64 words (SW_…) ------------------------------------------------
S_NEXT = 0  # link of the list it is in; its position while in a batch
S_RELEASE = 1  # link of the release list
S_REQUEST = 2
S_PROMPT = 3
S_OUTPUT = 4
S_PREDICTED = 5
S_GENERATED = 6  # tokens out, up to date while it does not decode
S_JOIN = 7  # its number in the order of joining
SW_FINISH = 4  # while it decodes: step at which it finishes; in a chunk: tokens prefilled; else: prefill end
SW_TRANSFER = 5  # transfer end (release time of its prefill blocks)
SW_LAST = 6  # time of its last token, up to date while it does not decode
S_CROSS = 14  # position among the ledger's crossings, −1 if not there
S_PLACE = 15  # packed, see below
SLOT_BYTES = 64
SLOT_WORDS = 8

PLACE_BITS = 12
PLACE_MASK = (1 << PLACE_BITS) - 1
ROUTER_SHIFT = 2 * PLACE_BITS
ROUTER_BITS = 3
ROUTER_MASK = (1 << ROUTER_BITS) - 1
LOOSE_FLAG = 1 << 27  # SLO class
RELEASED = 1 << 28  # its prefill blocks are free
ENDED = 1 << 29  # it has ended; the slot lives on for its prefill blocks
LOCAL = 1 << 30  # must be prefilled where it is queued

MAX_INSTANCES = 1 << PLACE_BITS
MAX_ROUTERS = ROUTER_MASK + 1

# --- trace row: 10 int32 cells (T32_…), some of them int64 words (T_…) -----------------------------------------------
# What a request brings lies together: it is all read within a step or two, and hardly again.
# T32_WHO is S_PLACE from ROUTER_SHIFT on: the router and the SLO class.
T_ARRIVAL, T_TTFT, T_TPOT = range(3)
T32_PROMPT, T32_OUTPUT, T32_PREDICTED, T32_WHO = range(6, 10)
TRACE_WORDS = 5

# --- record row (envs/records.py): word and cell offsets --------------------------------------------------------
(
    R_ARRIVAL,
    R_PREFILL_START,
    R_PREFILL_END,
    R_RESERVE,
    R_TRANSFER_START,
    R_TRANSFER_END,
    R_FIRST_TOKEN,
    R_LAST_TOKEN,
    R_END,
    R_MAX_STALL,
) = range(10)
R32_PREDICTED, R32_GENERATED, R32_PREEMPTIONS, R32_REROUTES = range(20, 24)
R16_PREFILL, R16_DECODE, R16_ROUTER, R16_STATUS = range(48, 52)
RECORD_WORDS = 13
ROW_WORDS = 16
"""A record with what is noted beside it: two cache lines. Where records are not kept, they lie behind each slot."""

# --- entry: what a step tells of (stepping.py), the first of each kind in the first entry, … -----------------------
# Where records are not kept, it begins with the record row of a request that has ended.
N_ENDED = ROW_WORDS  # request that has ended
N_MISSED = ROW_WORDS + 1  # request whose miss became certain
ENTRY_WORDS = 24

# --- decision log row --------------------------------------------------------------------------------------------
D_TIME, D_POLL = 0, 1  # words
D32_REQUEST, D32_PREDICTED = 4, 5  # cells
D32_VIEW = 6  # prefill, then decode columns
D_PROBABILITY_WORD = 12
D32_PREFILL, D32_DECODE = 26, 27
DECISION_WORDS = 14
