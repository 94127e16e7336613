// A libibverbs and a librdmacm for tests: one device without a kernel, whose queue pairs
// reach each other at once, and which fails as a test tells it. They are stricter than the
// real ones: what those would forgive, crash on, or wait for without end is written down
// as a violation. Nothing is ever freed, so that a late use is seen, and does no harm.
#ifndef FAKE_H
#define FAKE_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../abi_cm.h"
#include "../../abi_verbs.h"

// The memory that is shared with the test, a file named by VERBENA_FAKE. The test finds
// functions and words by their names.

struct fake_fn {
	char name[40];
	int64_t err;  // what the function fails with; 0: nothing
	int64_t skip; // calls that succeed before
	int64_t calls;
};

struct fake_word {
	char name[24];
	int64_t v;
};

#define FAKE_WORDS_N 64
#define FAKE_FNS_N 128

struct fake {
	int64_t violations;
	char violation[248]; // the first
	struct fake_word word[FAKE_WORDS_N];
	struct fake_fn fn[FAKE_FNS_N]; // those of librdmacm begin in the middle
};

// live_… count objects, the others are set by tests, or tell them descriptors.
#define FAKE_WORDS(X) \
	X(devices) X(port_state) X(link) X(port_flags) X(no_ops) X(no_extended) X(khz) X(clock_sec) X(clock_ticks) \
	X(wc_status) X(wc_opcode) X(poll_ret) X(polls) X(bad_elsewhere) X(drop_request) X(no_verbs) \
	X(async_wfd) X(comp_wfd) X(cm_wfd) X(bench_qp) X(bench_cq) X(bench_batch) \
	X(live_ctx) X(live_pd) X(live_mr) X(live_mw) X(live_ah) X(live_chan) X(live_cq) X(live_qp) X(live_srq) \
	X(live_lists) X(live_ids) X(live_cmchan) X(live_groups) X(live_events)

enum {
#define X(w) W_##w,
	FAKE_WORDS(X)
#undef X
};

extern struct fake *fake;

#define W(w) (fake->word[W_##w].v)

// fake_violation notes what a program must not do.
void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
// fake_enter counts a call, and gives what it shall fail with.
int fake_enter(int fn);
// fake_pipe makes the descriptor of a queue of events; what is written to w is read from
// the one it gives.
int fake_pipe(int *w);

#define MAGIC 0x5eed1e55
#define DEAD 0xdeadbeef

#endif
