// What the files of the fake libibverbs share.
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include "fake.h"

#define FNS(X) \
	X(ibv_get_device_list) X(ibv_open_device) X(ibv_close_device) X(ibv_get_async_event) X(ibv_ack_async_event) \
	X(ibv_query_device) X(ibv_query_port) X(ibv_query_gid) X(_ibv_query_gid_table) X(ibv_query_pkey) X(ibv_alloc_pd) \
	X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_reg_mr_iova) X(ibv_reg_mr_iova2) X(ibv_reg_dmabuf_mr) X(ibv_dereg_mr) \
	X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) X(ibv_create_cq) X(ibv_resize_cq) X(ibv_destroy_cq) \
	X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_create_srq) X(ibv_modify_srq) X(ibv_query_srq) X(ibv_destroy_srq) \
	X(ibv_create_qp) X(ibv_query_qp) X(ibv_modify_qp) X(ibv_destroy_qp) X(ibv_create_ah) X(ibv_destroy_ah) \
	X(ibv_attach_mcast) X(ibv_detach_mcast) X(alloc_mw) X(dealloc_mw) X(poll_cq) X(req_notify_cq) X(post_send) \
	X(post_recv) X(post_srq_recv) X(query_port) X(modify_cq) X(query_rt_values) X(query_device_ex)

enum {
#define X(f) F_##f,
	FNS(X)
#undef X
};

#define ENTER(f) fake_enter(F_##f)

// What comes before an object of the library is the fake's own.

struct context {
	int wfd;
	struct abi_verbs_context x;
};

struct pd {
	struct abi_pd pd;
	uint32_t magic;
	int users;
};

struct channel {
	struct abi_comp_channel c;
	uint32_t magic;
	int wfd;
};

struct cq {
	struct abi_cq cq;
	uint32_t magic;
	int users, armed, broken;
	uint32_t fetched, acked, async_fetched, async_acked;
	uint32_t head, n, size;
	struct abi_wc *wc;
};

struct rq {
	uint32_t head, n, size, max_sge;
	struct { uint64_t id; int n; struct abi_sge sge[16]; } *r;
};

struct srq {
	struct abi_srq srq;
	uint32_t magic;
	int users;
	uint32_t limit, fetched, acked;
	struct rq rq;
};

struct qp {
	struct abi_qp qp;
	uint32_t magic;
	uint32_t fetched, acked;
	int signal_all;
	struct abi_qp_cap cap;
	struct abi_qp_attr attr;
	struct rq rq;
};

#define QPS 4096

extern pthread_mutex_t mu; // of the queues
extern struct qp *qps[QPS];

#define LIVE(o, what) \
	do { \
		if ((o)->magic != MAGIC) \
			fake_violation("%s of a destroyed object", what); \
	} while (0)

void *new(size_t n);
// null and minus set errno.
void *null(int e);
int minus(int e);

struct comp_event {
	struct cq *cq;
	uint64_t forced; // by the test: also if the queue is gone
};

void emit(struct cq *q);
void async(struct abi_context *ctx, int type, void *element);
void push(struct cq *q, const struct abi_wc *w, int solicited);
int known(uint32_t rkey);
int bind_window(struct abi_send_wr *w); // statuses
int invalidate(uint32_t rkey);
void rq_init(struct rq *r, uint32_t n, uint32_t sges);
int rq_post(struct rq *r, struct abi_recv_wr *wr, struct abi_recv_wr **bad);

// Operations of the table of a context.
struct abi_mw *alloc_mw(struct abi_pd *pd, int32_t type);
int dealloc_mw(struct abi_mw *w);
int poll_cq(struct abi_cq *cq, int n, struct abi_wc *wc);
int req_notify_cq(struct abi_cq *cq, int solicited);
int modify_cq(struct abi_cq *cq, struct abi_modify_cq_attr *a);
int post_send(struct abi_qp *qp, struct abi_send_wr *w, struct abi_send_wr **bad);
int post_recv(struct abi_qp *qp, struct abi_recv_wr *w, struct abi_recv_wr **bad);
int post_srq_recv(struct abi_srq *srq, struct abi_recv_wr *w, struct abi_recv_wr **bad);

// bench posts and polls as a program in C does, without anything between it and the
// library's own functions.
int bench(struct abi_context *ctx, int rounds);

#endif
