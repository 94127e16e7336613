#include "verbs.h"

// Receive queues, of a queue pair or shared.

void rq_init(struct rq *r, uint32_t n, uint32_t sges)
{
	r->size = n ? n : 1;
	r->max_sge = sges;
	r->r = new(r->size * sizeof(*r->r));
}

int rq_post(struct rq *r, struct abi_recv_wr *wr, struct abi_recv_wr **bad)
{
	int i;

	for (; wr; wr = wr->next) {
		*bad = W(bad_elsewhere) ? (void *)&mu : wr;
		if (r->n == r->size)
			return ENOMEM;
		if (wr->num_sge > 16 || wr->num_sge > (int)r->max_sge)
			return EINVAL;
		i = (r->head + r->n++) % r->size;
		r->r[i].id = wr->wr_id;
		r->r[i].n = wr->num_sge;
		memcpy(r->r[i].sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	}
	return 0;
}

struct abi_srq *ibv_create_srq(struct abi_pd *pd, struct abi_srq_init_attr *a)
{
	struct srq *s;
	int err = ENTER(ibv_create_srq);

	if (err)
		return null(err);
	s = new(sizeof(*s));
	s->magic = MAGIC;
	s->srq.context = pd->context;
	s->srq.pd = pd;
	s->srq.srq_context = a->srq_context;
	rq_init(&s->rq, a->attr.max_wr, a->attr.max_sge);
	((struct pd *)pd)->users++;
	W(live_srq)++;
	return &s->srq;
}

int ibv_modify_srq(struct abi_srq *srq, struct abi_srq_attr *a, int mask)
{
	int err = ENTER(ibv_modify_srq);

	if (err || (mask & 1))
		return err ? err : EINVAL;
	((struct srq *)srq)->limit = a->srq_limit;
	return 0;
}

int ibv_query_srq(struct abi_srq *srq, struct abi_srq_attr *a)
{
	struct srq *s = (struct srq *)srq;
	int err = ENTER(ibv_query_srq);

	a->max_wr = s->rq.size;
	a->max_sge = s->rq.max_sge;
	a->srq_limit = s->limit;
	return err;
}

int ibv_destroy_srq(struct abi_srq *srq)
{
	struct srq *s = (struct srq *)srq;
	int err = ENTER(ibv_destroy_srq);

	LIVE(s, "ibv_destroy_srq");
	if (err)
		return err;
	if (s->users)
		return EBUSY;
	if (s->fetched != s->acked)
		fake_violation("ibv_destroy_srq hangs: %u of %u events acknowledged", s->acked, s->fetched);
	s->magic = DEAD;
	((struct pd *)srq->pd)->users--;
	W(live_srq)--;
	return 0;
}

