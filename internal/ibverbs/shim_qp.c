//go:build linux && cgo

#include "lib.h"

_Static_assert(sizeof(struct vb_sge) == sizeof(struct abi_sge) && offsetof(struct vb_sge, len) == offsetof(struct abi_sge, length) &&
		       offsetof(struct vb_sge, lkey) == offsetof(struct abi_sge, lkey),
	       "SGEs are given to the library as Go wrote them");

static uint32_t batch(uint32_t max) { return max < 1 ? 1 : max > VB_BATCH ? VB_BATCH : max; }

static int rq_init(struct vb_rq *r, uint32_t max_wr, uint32_t max_sge)
{
	uint32_t i;

	r->n = batch(max_wr);
	r->max_sge = max_sge;
	r->recv = calloc(r->n, sizeof(*r->recv));
	r->sge = calloc((size_t)r->n * (max_sge ? max_sge : 1), sizeof(*r->sge));
	r->wr = calloc(r->n, sizeof(*r->wr));
	if (!r->recv || !r->sge || !r->wr)
		return ENOMEM;
	for (i = 0; i < r->n; i++) {
		r->wr[i].sg_list = (struct abi_sge *)(r->sge + (size_t)i * max_sge);
		r->wr[i].next = i + 1 < r->n ? &r->wr[i + 1] : NULL;
	}
	vb_recv_empty(r, r->n);
	return 0;
}

static void rq_free(struct vb_rq *r)
{
	free(r->recv);
	free(r->sge);
	free(r->wr);
}

static void qp_free(struct vb_qp *q)
{
	vb_forget(q->key);
	free(q->send);
	free(q->sge);
	free(q->data);
	free(q->wr);
	rq_free(&q->rq);
	free(q);
}

static int sq_init(struct vb_qp *q)
{
	uint32_t i;

	q->n = batch(q->caps.send_wr);
	q->sges = q->caps.send_sge ? q->caps.send_sge : 1;
	q->send = calloc(q->n, sizeof(*q->send));
	q->sge = calloc((size_t)q->n * q->sges, sizeof(*q->sge));
	q->data = calloc(q->n, q->caps.inline_data ? q->caps.inline_data : 1);
	q->wr = calloc(q->n, sizeof(*q->wr));
	if (!q->send || !q->sge || !q->data || !q->wr)
		return ENOMEM;
	for (i = 0; i < q->n; i++) {
		q->wr[i].sg_list = (struct abi_sge *)(q->sge + (size_t)i * q->sges);
		q->wr[i].next = i + 1 < q->n ? &q->wr[i + 1] : NULL;
	}
	vb_send_empty(q, q->n);
	return 0;
}

static void caps_in(struct abi_qp_cap *to, const struct vb_qp_caps *from)
{
	to->max_send_wr = from->send_wr;
	to->max_recv_wr = from->recv_wr;
	to->max_send_sge = from->send_sge;
	to->max_recv_sge = from->recv_sge;
	to->max_inline_data = from->inline_data;
}

static void caps_out(struct vb_qp_caps *to, const struct abi_qp_cap *from)
{
	to->send_wr = from->max_send_wr;
	to->recv_wr = from->max_recv_wr;
	to->send_sge = from->max_send_sge;
	to->recv_sge = from->max_recv_sge;
	to->inline_data = from->max_inline_data;
}

int vb_create_qp(struct abi_pd *pd, const struct vb_qp_config *cfg, struct vb_qp **qp)
{
	const struct abi_context_ops *ops = &pd->context->ops;
	struct abi_qp_init_attr a;
	struct vb_qp *q;
	int e;

	if (!ops->post_send || !ops->post_recv)
		return VB_NO_DATA_PATH;
	q = calloc(1, sizeof(*q));
	if (!q)
		return ENOMEM;
	q->key = vb_keep(q);
	if (!q->key) {
		qp_free(q);
		return ENOMEM;
	}
	memset(&a, 0, sizeof(a));
	a.qp_context = q->key;
	a.send_cq = cfg->send_cq->cq;
	a.recv_cq = cfg->recv_cq->cq;
	a.srq = cfg->srq ? cfg->srq->srq : NULL;
	caps_in(&a.cap, &cfg->caps);
	a.qp_type = cfg->type;
	a.sq_sig_all = cfg->signal_all;
	q->handle = cfg->handle;
	q->ud = cfg->type == ABI_QPT_UD;
	errno = 0;
	q->qp = vb.ibv_create_qp(pd, &a);
	if (!q->qp) {
		e = vb_null();
		qp_free(q);
		return e;
	}
	q->num = q->qp->qp_num;
	caps_out(&q->caps, &a.cap);
	e = sq_init(q);
	if (!e)
		e = rq_init(&q->rq, q->caps.recv_wr, q->caps.recv_sge);
	if (e) {
		vb.ibv_destroy_qp(q->qp);
		qp_free(q);
		return e;
	}
	*qp = q;
	return 0;
}

int vb_destroy_qp(struct vb_qp *q)
{
	int fd = q->qp->context->async_fd;
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_destroy_qp(q->qp));
	if (vb_over(fd, e))
		qp_free(q);
	return e;
}

int vb_modify_qp(struct vb_qp *q, const struct vb_qp_attr *v, uint32_t mask)
{
	struct abi_qp_attr a;

	memset(&a, 0, sizeof(a));
	a.qp_state = v->state;
	a.cur_qp_state = v->cur_state;
	a.path_mtu = v->path_mtu;
	a.path_mig_state = v->mig_state;
	a.qkey = v->qkey;
	a.rq_psn = v->rq_psn;
	a.sq_psn = v->sq_psn;
	a.dest_qp_num = v->dest_qpn;
	a.qp_access_flags = v->access;
	caps_in(&a.cap, &v->caps);
	vb_ah_in(&a.ah_attr, &v->ah);
	vb_ah_in(&a.alt_ah_attr, &v->alt_ah);
	a.pkey_index = v->pkey_index;
	a.alt_pkey_index = v->alt_pkey_index;
	a.en_sqd_async_notify = v->sqd_notify;
	a.sq_draining = v->sq_draining;
	a.max_rd_atomic = v->max_rd_atomic;
	a.max_dest_rd_atomic = v->max_dest_rd_atomic;
	a.min_rnr_timer = v->min_rnr_timer;
	a.port_num = v->port;
	a.timeout = v->timeout;
	a.retry_cnt = v->retry_cnt;
	a.rnr_retry = v->rnr_retry;
	a.alt_port_num = v->alt_port;
	a.alt_timeout = v->alt_timeout;
	a.rate_limit = v->rate_limit;
	errno = 0;
	return vb_errno(vb.ibv_modify_qp(q->qp, &a, (int)mask));
}

void vb_qp_attr_out(struct vb_qp_attr *to, const struct abi_qp_attr *a)
{
	memset(to, 0, sizeof(*to));
	to->state = a->qp_state;
	to->cur_state = a->cur_qp_state;
	to->path_mtu = a->path_mtu;
	to->mig_state = a->path_mig_state;
	to->qkey = a->qkey;
	to->rq_psn = a->rq_psn;
	to->sq_psn = a->sq_psn;
	to->dest_qpn = a->dest_qp_num;
	to->access = a->qp_access_flags;
	caps_out(&to->caps, &a->cap);
	vb_ah_out(&to->ah, &a->ah_attr);
	vb_ah_out(&to->alt_ah, &a->alt_ah_attr);
	to->pkey_index = a->pkey_index;
	to->alt_pkey_index = a->alt_pkey_index;
	to->sqd_notify = a->en_sqd_async_notify;
	to->sq_draining = a->sq_draining;
	to->max_rd_atomic = a->max_rd_atomic;
	to->max_dest_rd_atomic = a->max_dest_rd_atomic;
	to->min_rnr_timer = a->min_rnr_timer;
	to->port = a->port_num;
	to->timeout = a->timeout;
	to->retry_cnt = a->retry_cnt;
	to->rnr_retry = a->rnr_retry;
	to->alt_port = a->alt_port_num;
	to->alt_timeout = a->alt_timeout;
	to->rate_limit = a->rate_limit;
}

int vb_query_qp(struct vb_qp *q, struct vb_qp_attr *v, uint32_t mask)
{
	struct abi_qp_attr a;
	struct abi_qp_init_attr init;
	int e;

	memset(&a, 0, sizeof(a));
	memset(&init, 0, sizeof(init));
	errno = 0;
	e = vb_errno(vb.ibv_query_qp(q->qp, &a, (int)mask, &init));
	if (!e)
		vb_qp_attr_out(v, &a);
	return e;
}

int vb_mcast(struct vb_qp *q, const uint8_t *gid, uint16_t lid, int attach)
{
	union abi_gid g;

	memcpy(g.raw, gid, sizeof(g.raw));
	errno = 0;
	return vb_errno(attach ? vb.ibv_attach_mcast(q->qp, &g, lid) : vb.ibv_detach_mcast(q->qp, &g, lid));
}

static void srq_free(struct vb_srq *s)
{
	vb_forget(s->key);
	rq_free(&s->rq);
	free(s);
}

int vb_create_srq(struct abi_pd *pd, uint64_t handle, uint32_t max_wr, uint32_t max_sge, uint32_t limit,
		  struct vb_srq **srq)
{
	struct abi_srq_init_attr a = {NULL, {max_wr, max_sge, 0}}; /* a limit is ignored here */
	struct vb_srq *s;
	int e;

	if (!pd->context->ops.post_srq_recv)
		return VB_NO_SRQ_POST;
	s = calloc(1, sizeof(*s));
	if (!s)
		return ENOMEM;
	s->key = vb_keep(s);
	if (!s->key) {
		srq_free(s);
		return ENOMEM;
	}
	a.srq_context = s->key;
	s->handle = handle;
	errno = 0;
	s->srq = vb.ibv_create_srq(pd, &a);
	if (!s->srq) {
		e = vb_null();
		srq_free(s);
		return e;
	}
	s->max_wr = a.attr.max_wr;
	s->max_sge = a.attr.max_sge;
	e = rq_init(&s->rq, s->max_wr, s->max_sge);
	if (!e && limit)
		e = vb_modify_srq(s, -1, limit);
	if (e) {
		vb.ibv_destroy_srq(s->srq);
		srq_free(s);
		return e;
	}
	*srq = s;
	return 0;
}

int vb_modify_srq(struct vb_srq *s, int64_t max_wr, int64_t limit)
{
	struct abi_srq_attr a = {0, 0, 0};
	int mask = 0;

	if (max_wr >= 0) {
		a.max_wr = (uint32_t)max_wr;
		mask |= 1;
	}
	if (limit >= 0) {
		a.srq_limit = (uint32_t)limit;
		mask |= 2;
	}
	errno = 0;
	return mask ? vb_errno(vb.ibv_modify_srq(s->srq, &a, mask)) : 0;
}

int vb_query_srq(struct vb_srq *s, uint32_t *max_wr, uint32_t *limit)
{
	struct abi_srq_attr a = {0, 0, 0};
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_query_srq(s->srq, &a));
	*max_wr = a.max_wr;
	*limit = a.srq_limit;
	return e;
}

int vb_destroy_srq(struct vb_srq *s)
{
	int fd = s->srq->context->async_fd;
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_destroy_srq(s->srq));
	if (vb_over(fd, e))
		srq_free(s);
	return e;
}
