//go:build linux && cgo

#include <arpa/inet.h>

#include "lib.h"

static uint64_t outcome(uint32_t posted, int e) { return posted | (uint64_t)(uint32_t)e << 32; }

// place gives which of n requests is bad. A library that does not say, or points
// elsewhere, has taken none for all that is known.
static uint32_t place(const void *bad, const void *first, size_t size, uint32_t n)
{
	size_t off = (uintptr_t)bad - (uintptr_t)first;

	return bad && off / size < n ? (uint32_t)(off / size) : 0;
}

// fill makes the library's request of what Go wrote. The list of SGEs, and the link to
// the next place, are there already.
static inline int fill(struct vb_qp *q, uint32_t i)
{
	const struct vb_send *s = &q->send[i];
	struct abi_send_wr *w = &q->wr[i];

	w->wr_id = s->id;
	w->num_sge = (int)s->sgl.len;
	w->opcode = s->opcode;
	w->send_flags = s->flags;
	if (q->ud) {
		if (!s->ah)
			return EINVAL; // the library would follow it
		w->wr.ud.ah = (struct abi_ah *)(uintptr_t)s->ah;
		w->wr.ud.remote_qpn = s->qpn;
		w->wr.ud.remote_qkey = s->qkey;
	}
	if (s->flags & ABI_SEND_INLINE) {
		struct vb_sge *g = &q->sge[(size_t)i * q->sges];

		g->addr = (uintptr_t)(q->data + (size_t)i * q->caps.inline_data);
		g->len = (uint32_t)s->data.len;
		g->lkey = 0;
		w->num_sge = s->data.len ? 1 : 0;
	}
	switch (s->opcode) {
	case ABI_WR_SEND:
	case ABI_WR_SEND_WITH_IMM:
		w->imm_data = htonl(s->imm);
		break;
	case ABI_WR_RDMA_WRITE:
	case ABI_WR_RDMA_WRITE_WITH_IMM:
	case ABI_WR_RDMA_READ:
		w->imm_data = htonl(s->imm);
		w->wr.rdma.remote_addr = s->addr;
		w->wr.rdma.rkey = s->rkey;
		break;
	case ABI_WR_ATOMIC_CMP_AND_SWP:
	case ABI_WR_ATOMIC_FETCH_AND_ADD:
		// The library wants the number to add where the other has that to compare.
		w->wr.atomic.remote_addr = s->addr;
		w->wr.atomic.compare_add = s->opcode == ABI_WR_ATOMIC_FETCH_AND_ADD ? s->swap : s->compare;
		w->wr.atomic.swap = s->swap;
		w->wr.atomic.rkey = s->rkey;
		break;
	case ABI_WR_LOCAL_INV:
	case ABI_WR_SEND_WITH_INV:
		w->imm_data = s->rkey;
		break;
	case ABI_WR_BIND_MW:
		w->imm_data = 0; // the library of Soft-RoCE wants none
		w->bind_mw.mw = (struct abi_mw *)(uintptr_t)s->mw;
		w->bind_mw.rkey = s->rkey;
		w->bind_mw.bind_info.mr = (struct abi_mr *)(uintptr_t)s->mr;
		w->bind_mw.bind_info.addr = s->addr;
		w->bind_mw.bind_info.length = s->len;
		w->bind_mw.bind_info.mw_access_flags = s->rights;
		break;
	default:
		return EOPNOTSUPP;
	}
	return 0;
}

uint64_t vb_post_send(uintptr_t p, uint32_t n)
{
	struct vb_qp *q = (struct vb_qp *)p;
	struct abi_send_wr *bad = NULL, *next;
	uint32_t i;
	int e = 0, unfit = 0;

	if (n > q->n)
		return outcome(0, EINVAL);
	for (i = 0; i < n; i++) {
		unfit = fill(q, i);
		if (unfit)
			break;
	}
	vb_send_empty(q, n);
	if (i == 0)
		return outcome(0, unfit);
	next = q->wr[i - 1].next;
	q->wr[i - 1].next = NULL;
	errno = 0;
	e = vb_errno(q->qp->context->ops.post_send(q->qp, q->wr, &bad));
	q->wr[i - 1].next = next;
	if (e)
		return outcome(place(bad, q->wr, sizeof(*bad), i), e);
	// The library takes the key that a window has from here, with the next bind. verbs
	// posts each alone.
	if (q->wr[0].opcode == ABI_WR_BIND_MW)
		q->wr[0].bind_mw.mw->rkey = q->wr[0].bind_mw.rkey;
	return outcome(i, unfit);
}

// link_recv prepares n receive requests.
static struct abi_recv_wr *link_recv(struct vb_rq *r, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		r->wr[i].wr_id = r->recv[i].id;
		r->wr[i].num_sge = (int)r->recv[i].sgl.len;
	}
	vb_recv_empty(r, n);
	r->wr[n - 1].next = NULL;
	return r->wr;
}

static uint64_t posted(struct vb_rq *r, uint32_t n, int e, struct abi_recv_wr *bad)
{
	r->wr[n - 1].next = n < r->n ? &r->wr[n] : NULL;
	if (e)
		return outcome(place(bad, r->wr, sizeof(*bad), n), e);
	return outcome(n, 0);
}

uint64_t vb_post_recv(uintptr_t p, uint32_t n)
{
	struct vb_qp *q = (struct vb_qp *)p;
	struct abi_recv_wr *bad = NULL;
	int e;

	if (n == 0 || n > q->rq.n)
		return outcome(0, n ? EINVAL : 0);
	errno = 0;
	e = vb_errno(q->qp->context->ops.post_recv(q->qp, link_recv(&q->rq, n), &bad));
	return posted(&q->rq, n, e, bad);
}

uint64_t vb_post_srq(uintptr_t p, uint32_t n)
{
	struct vb_srq *s = (struct vb_srq *)p;
	struct abi_recv_wr *bad = NULL;
	int e;

	if (n == 0 || n > s->rq.n)
		return outcome(0, n ? EINVAL : 0);
	errno = 0;
	e = vb_errno(s->srq->context->ops.post_srq_recv(s->srq, link_recv(&s->rq, n), &bad));
	return posted(&s->rq, n, e, bad);
}
