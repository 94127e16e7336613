// What the files of the fake librdmacm share.
#ifndef FAKE_MANAGER_H
#define FAKE_MANAGER_H

#include "fake.h"

#include <arpa/inet.h>

#define FNS(X) \
	X(rdma_create_event_channel) X(rdma_create_id) X(rdma_destroy_id) X(rdma_bind_addr) X(rdma_resolve_addr) \
	X(rdma_resolve_route) X(rdma_connect) X(rdma_listen) X(rdma_accept) X(rdma_reject) X(rdma_notify) X(rdma_disconnect) \
	X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_get_devices) X(rdma_free_devices) X(rdma_set_option) \
	X(rdma_migrate_id) X(rdma_join_multicast) X(rdma_leave_multicast) X(rdma_join_multicast_ex) X(rdma_establish) \
	X(rdma_init_qp_attr)

enum {
	F_begin = FAKE_FNS_N / 2 - 1,
#define X(f) F_##f,
	FNS(X)
#undef X
};

#define ENTER(f) fake_enter(F_##f)

enum { IDLE, BOUND, LISTENING, RESOLVED, ROUTED, ASKED, REQUEST, ANSWERED, CONNECTED, OVER };

struct group {
	union abi_sockaddr addr;
	void *context;
	uint32_t fetched, acked;
	struct group *next;
};

struct id {
	struct abi_cm_id id;
	uint32_t magic;
	int state, timeout;
	uint32_t fetched, acked;
	struct id *peer, *listener, *next;
	struct abi_conn_param theirs;
	struct group *groups;
};

struct event {
	struct abi_cm_event e;
	uint32_t magic;
	struct id *of; // whose acknowledgement counts
	struct group *group;
	unsigned char data[256];
	struct event *next;
};

struct channel {
	struct abi_event_channel c;
	uint32_t magic;
	int wfd;
	struct event *first;
};

extern pthread_mutex_t mu;
extern struct id *ids;
extern int ports; // the last that was chosen

void *new(size_t n);
int minus(int e);
struct abi_context *context(int i);
struct event *emit(struct id *v, int type, int status);
void conn(struct event *e, const struct abi_conn_param *p, int n);
struct id *create(struct abi_event_channel *ch, void *context, int ps);

#define LIVE(o, what) \
	do { \
		if ((o)->magic != MAGIC) \
			fake_violation("%s of a destroyed object", what); \
	} while (0)

// The real library follows NULL here.
#define DEVICE(v, what) \
	do { \
		LIVE(v, what); \
		if (!(v)->id.verbs) { \
			fake_violation("%s of an id without a device crashes", what); \
			return minus(EINVAL); \
		} \
	} while (0)

// The real library's table of ids is not safe where the functions that begin with TABLE run at
// once.
int table_enter(const char *what);
void table_leave(int *entered);

#define TABLE() int table __attribute__((cleanup(table_leave), unused)) = table_enter(__func__)

#endif
