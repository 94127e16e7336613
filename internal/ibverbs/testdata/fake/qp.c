#include "verbs.h"

struct qp *qps[QPS];
static uint32_t qp_next = 17;

struct abi_qp *ibv_create_qp(struct abi_pd *pd, struct abi_qp_init_attr *a)
{
	struct qp *q;
	int err = ENTER(ibv_create_qp);

	if (err)
		return null(err);
	if (!a->send_cq || !a->recv_cq)
		fake_violation("ibv_create_qp without both completion queues");
	if (a->cap.max_send_wr > 16384 || a->cap.max_recv_wr > 16384)
		return null(EINVAL);
	q = new(sizeof(*q));
	q->magic = MAGIC;
	q->qp.context = pd->context;
	q->qp.qp_context = a->qp_context;
	q->qp.pd = pd;
	q->qp.send_cq = a->send_cq;
	q->qp.recv_cq = a->recv_cq;
	q->qp.srq = a->srq;
	q->qp.qp_type = a->qp_type;
	q->signal_all = a->sq_sig_all;
	q->cap = a->cap;
	do
		q->qp.qp_num = qp_next++ % QPS;
	while (qps[q->qp.qp_num]);
	qps[q->qp.qp_num] = q;
	rq_init(&q->rq, a->cap.max_recv_wr, a->cap.max_recv_sge);
	((struct cq *)a->send_cq)->users++;
	((struct cq *)a->recv_cq)->users++;
	((struct pd *)pd)->users++;
	if (a->srq)
		((struct srq *)a->srq)->users++;
	W(live_qp)++;
	return &q->qp;
}

int ibv_destroy_qp(struct abi_qp *qp)
{
	struct qp *q = (struct qp *)qp;
	int err = ENTER(ibv_destroy_qp);

	LIVE(q, "ibv_destroy_qp");
	if (err)
		return err;
	if (q->fetched != q->acked)
		fake_violation("ibv_destroy_qp hangs: %u of %u events acknowledged", q->acked, q->fetched);
	pthread_mutex_lock(&mu);
	q->magic = DEAD;
	qps[qp->qp_num] = NULL;
	((struct cq *)qp->send_cq)->users--;
	((struct cq *)qp->recv_cq)->users--;
	((struct pd *)qp->pd)->users--;
	if (qp->srq)
		((struct srq *)qp->srq)->users--;
	pthread_mutex_unlock(&mu);
	W(live_qp)--;
	return 0;
}

#define FLUSHED 5

static void flush_recv(struct qp *q)
{
	struct abi_wc w;

	for (; q->rq.n; q->rq.n--, q->rq.head = (q->rq.head + 1) % q->rq.size) {
		memset(&w, 0xa5, sizeof(w));
		w.wr_id = q->rq.r[q->rq.head].id;
		w.status = FLUSHED;
		w.qp_num = q->qp.qp_num;
		push((struct cq *)q->qp.recv_cq, &w, 0);
	}
}

// TAKE copies an attribute, if it is in the mask.
#define TAKE(bit, f) \
	if (mask & (1 << (bit))) \
	q->attr.f = a->f

int ibv_modify_qp(struct abi_qp *qp, struct abi_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)qp;
	int err = ENTER(ibv_modify_qp);

	LIVE(q, "ibv_modify_qp");
	if (err)
		return err;
	if (mask & 1 && a->qp_state == 2 && qp->state != 1)
		return EINVAL;
	pthread_mutex_lock(&mu);
	TAKE(3, qp_access_flags);
	TAKE(4, pkey_index);
	TAKE(5, port_num);
	TAKE(6, qkey);
	TAKE(7, ah_attr);
	TAKE(8, path_mtu);
	TAKE(9, timeout);
	TAKE(10, retry_cnt);
	TAKE(11, rnr_retry);
	TAKE(12, rq_psn);
	TAKE(13, max_rd_atomic);
	TAKE(15, min_rnr_timer);
	TAKE(16, sq_psn);
	TAKE(17, max_dest_rd_atomic);
	TAKE(20, dest_qp_num);
	if (mask & 1) {
		qp->state = q->attr.qp_state = a->qp_state;
		if (qp->state == 0)
			q->rq.n = 0;
		if (qp->state == 6)
			flush_recv(q);
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

int ibv_query_qp(struct abi_qp *qp, struct abi_qp_attr *a, int mask, struct abi_qp_init_attr *init)
{
	struct qp *q = (struct qp *)qp;
	int err = ENTER(ibv_query_qp);

	(void)mask;
	if (err)
		return err;
	*a = q->attr;
	a->cap = q->cap;
	a->cur_qp_state = a->qp_state;
	init->cap = q->cap;
	return 0;
}

int ibv_attach_mcast(struct abi_qp *qp, const union abi_gid *g, uint16_t lid)
{
	(void)qp, (void)g, (void)lid;
	return ENTER(ibv_attach_mcast);
}

int ibv_detach_mcast(struct abi_qp *qp, const union abi_gid *g, uint16_t lid)
{
	(void)qp, (void)g, (void)lid;
	return ENTER(ibv_detach_mcast);
}

static size_t length(const struct abi_send_wr *w)
{
	size_t n = 0;
	int i;

	for (i = 0; i < w->num_sge; i++)
		n += w->sg_list[i].length;
	return n;
}

// spread copies between an area and a list of pieces.
static void spread(const struct abi_sge *l, int n, char *area, size_t len, int out)
{
	int i;

	for (i = 0; i < n && len; i++) {
		size_t k = l[i].length < len ? l[i].length : len;

		if (k)
			memcpy(out ? (char *)l[i].addr : area, out ? area : (char *)l[i].addr, k);
		area += k;
		len -= k;
	}
}

// arrive gives a message to the receiver, and the status to the sender.
static int arrive(struct qp *from, struct qp *to, const struct abi_send_wr *w, const char *data, size_t n)
{
	struct srq *s = to ? (struct srq *)to->qp.srq : NULL;
	int grh = from->qp.qp_type == ABI_QPT_UD ? 40 : 0;
	struct rq *r;
	struct abi_wc c;
	char *area;

	if (!to || to->qp.state < 2 || to->qp.state == 6)
		return grh ? 0 : 12; // RETRY_EXC
	r = s ? &s->rq : &to->rq;
	if (!r->n)
		return grh ? 0 : 13; // RNR_RETRY_EXC
	memset(&c, 0, sizeof(c));
	c.wr_id = r->r[r->head].id;
	c.opcode = w->opcode == ABI_WR_RDMA_WRITE_WITH_IMM ? 129 : 128;
	c.qp_num = to->qp.qp_num;
	c.src_qp = grh ? from->qp.qp_num : 0;
	c.byte_len = n + grh;
	c.wc_flags = grh ? 1 : 0;
	if (w->opcode == ABI_WR_SEND_WITH_IMM || w->opcode == ABI_WR_RDMA_WRITE_WITH_IMM)
		c.wc_flags |= 2;
	if (w->opcode == ABI_WR_SEND_WITH_INV)
		c.wc_flags |= ABI_WC_WITH_INV;
	c.imm_data = w->imm_data;
	if (c.opcode == 128 && n + grh) {
		area = new(n + grh);
		memcpy(area + grh, data, n);
		spread(r->r[r->head].sge, r->r[r->head].n, area, n + grh, 1);
		free(area);
	}
	r->head = (r->head + 1) % r->size;
	r->n--;
	if (s && s->limit && r->n < s->limit) {
		s->limit = 0;
		async(s->srq.context, ABI_EVENT_SRQ_LIMIT_REACHED, s);
	}
	push((struct cq *)to->qp.recv_cq, &c, w->send_flags & 4);
	return 0;
}

static int perform(struct qp *q, struct abi_send_wr *w, int *opcode)
{
	size_t n = length(w);
	char stack[256], *data = n > sizeof(stack) ? new(n) : stack;
	uint64_t old, *word;
	int status = 0;

	*opcode = 0;
	if (w->opcode != ABI_WR_RDMA_READ && n)
		spread(w->sg_list, w->num_sge, data, n, 0);
	switch (w->opcode) {
	case ABI_WR_RDMA_WRITE_WITH_IMM:
	case ABI_WR_RDMA_WRITE:
		*opcode = 1;
		if (n && !known(w->wr.rdma.rkey)) {
			status = 10; // REM_ACCESS
			break;
		}
		if (n)
			memcpy((char *)w->wr.rdma.remote_addr, data, n);
		if (w->opcode == ABI_WR_RDMA_WRITE)
			break;
		// fallthrough
	case ABI_WR_SEND:
	case ABI_WR_SEND_WITH_IMM:
	case ABI_WR_SEND_WITH_INV:
		if (q->qp.qp_type == ABI_QPT_UD) {
			if (w->wr.ud.ah->handle != MAGIC)
				fake_violation("send with a destroyed address handle");
			status = arrive(q, qps[w->wr.ud.remote_qpn % QPS], w, data, n);
		} else {
			status = arrive(q, qps[q->attr.dest_qp_num % QPS], w, data, n);
		}
		break;
	case ABI_WR_RDMA_READ:
		*opcode = 2;
		spread(w->sg_list, w->num_sge, (char *)w->wr.rdma.remote_addr, n, 1);
		break;
	case ABI_WR_ATOMIC_CMP_AND_SWP:
	case ABI_WR_ATOMIC_FETCH_AND_ADD:
		word = (uint64_t *)w->wr.atomic.remote_addr;
		old = *word;
		*opcode = w->opcode == ABI_WR_ATOMIC_CMP_AND_SWP ? 3 : 4;
		if (*opcode == 4)
			*word += w->wr.atomic.compare_add;
		else if (old == w->wr.atomic.compare_add)
			*word = w->wr.atomic.swap;
		spread(w->sg_list, w->num_sge, (char *)&old, 8, 1);
		break;
	case ABI_WR_LOCAL_INV:
		*opcode = 6;
		status = invalidate(w->imm_data);
		break;
	case ABI_WR_BIND_MW:
		*opcode = 5;
		status = bind_window(w);
		break;
	default:
		fake_violation("request %d", w->opcode);
	}
	if (data != stack)
		free(data);
	return status;
}

static int send_locked(struct qp *q, struct abi_send_wr *w, struct abi_send_wr **bad)
{
	struct abi_wc c;
	int opcode;

	for (; w; w = w->next) {
		*bad = W(bad_elsewhere) ? (void *)&mu : w;
		if (q->qp.state < 3)
			return EINVAL;
		if (w->num_sge > (int)q->cap.max_send_sge || (w->send_flags & ABI_SEND_INLINE && length(w) > q->cap.max_inline_data))
			return EINVAL;
		memset(&c, 0, sizeof(c));
		c.wr_id = w->wr_id;
		c.qp_num = q->qp.qp_num;
		c.status = q->qp.state == 6 ? FLUSHED : perform(q, w, &opcode);
		c.opcode = q->qp.state == 6 ? 0 : opcode;
		if (c.status || q->signal_all || w->send_flags & 2)
			push((struct cq *)q->qp.send_cq, &c, 0);
		if (c.status && q->qp.qp_type != ABI_QPT_UD && q->qp.state != 6) {
			q->qp.state = q->attr.qp_state = 6;
			flush_recv(q);
		}
	}
	return 0;
}

// failed gives what a post that shall fail answers, for the request after skip.
static int refuse(int fn)
{
	int err = fake->fn[fn].err ? fake_enter(fn) : 0;

	return err;
}

int post_send(struct abi_qp *qp, struct abi_send_wr *w, struct abi_send_wr **bad)
{
	struct qp *q = (struct qp *)qp;
	int err = refuse(F_post_send);

	LIVE(q, "post_send");
	if (err) {
		*bad = W(bad_elsewhere) ? (void *)&mu : w->next && !W(bad_elsewhere) ? w->next : w;
		return err;
	}
	pthread_mutex_lock(&mu);
	err = send_locked(q, w, bad);
	pthread_mutex_unlock(&mu);
	return err;
}

int post_recv(struct abi_qp *qp, struct abi_recv_wr *w, struct abi_recv_wr **bad)
{
	struct qp *q = (struct qp *)qp;
	int err = refuse(F_post_recv);

	LIVE(q, "post_recv");
	if (err) {
		*bad = W(bad_elsewhere) ? (void *)&mu : w;
		return err;
	}
	pthread_mutex_lock(&mu);
	err = rq_post(&q->rq, w, bad);
	if (!err && qp->state == 6)
		flush_recv(q);
	pthread_mutex_unlock(&mu);
	return err;
}

int post_srq_recv(struct abi_srq *srq, struct abi_recv_wr *w, struct abi_recv_wr **bad)
{
	struct srq *s = (struct srq *)srq;
	int err = refuse(F_post_srq_recv);

	LIVE(s, "post_srq_recv");
	if (err) {
		*bad = w;
		return err;
	}
	pthread_mutex_lock(&mu);
	err = rq_post(&s->rq, w, bad);
	pthread_mutex_unlock(&mu);
	return err;
}

int bench(struct abi_context *ctx, int rounds)
{
	struct abi_qp *qp = (struct abi_qp *)(uintptr_t)W(bench_qp);
	struct abi_cq *cq = (struct abi_cq *)(uintptr_t)W(bench_cq);
	int i, got, n = (int)W(bench_batch);
	struct abi_send_wr wr[64], *bad;
	struct abi_sge sge[64];
	struct abi_wc wc[64];

	while (rounds-- > 0) {
		for (i = 0; i < n; i++) {
			sge[i].addr = (uintptr_t)wc;
			sge[i].length = 0;
			sge[i].lkey = 1;
			wr[i].wr_id = i;
			wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			wr[i].opcode = ABI_WR_RDMA_WRITE;
			wr[i].send_flags = 2;
			wr[i].imm_data = 0;
			wr[i].wr.rdma.remote_addr = 0;
			wr[i].wr.rdma.rkey = 1;
		}
		if (ctx->ops.post_send(qp, wr, &bad))
			return EIO;
		for (got = 0; got < n;) {
			i = ctx->ops.poll_cq(cq, 64, wc);
			if (i < 0)
				return EIO;
			got += i;
		}
	}
	return 0;
}

