//go:build linux && cgo

#include "lib.h"

// object gives this package's side of what an event is about, NULL if the event is about
// no object, or about one that is not this package's. about says which of the two.
static void *object(const struct abi_async_event *e, int *about)
{
	*about = 1;
	switch (e->event_type) {
	case ABI_EVENT_CQ_ERR:
		return vb_kept(e->element.cq->cq_context, e->element.cq);
	case ABI_EVENT_QP_FATAL:
	case ABI_EVENT_QP_REQ_ERR:
	case ABI_EVENT_QP_ACCESS_ERR:
	case ABI_EVENT_COMM_EST:
	case ABI_EVENT_SQ_DRAINED:
	case ABI_EVENT_PATH_MIG:
	case ABI_EVENT_PATH_MIG_ERR:
	case ABI_EVENT_QP_LAST_WQE_REACHED:
		return vb_kept(e->element.qp->qp_context, e->element.qp);
	case ABI_EVENT_SRQ_ERR:
	case ABI_EVENT_SRQ_LIMIT_REACHED:
		return vb_kept(e->element.srq->srq_context, e->element.srq);
	case ABI_EVENT_WQ_FATAL:
		return NULL;
	}
	*about = 0;
	return NULL;
}

// handle_of gives the handle of a vb_cq, vb_qp or vb_srq, which begin alike.
static uint64_t handle_of(const void *o) { return o ? ((const struct vb_srq *)o)->handle : 0; }

_Static_assert(offsetof(struct vb_cq, handle) == offsetof(struct vb_srq, handle) &&
		       offsetof(struct vb_qp, handle) == offsetof(struct vb_srq, handle),
	       "what events are about begins alike");

int vb_async_next(struct abi_context *ctx, struct vb_async *ev)
{
	struct abi_async_event e;
	int err, about;

	switch (vb_readable(ctx->async_fd)) {
	case 0:
		return EAGAIN;
	case -1:
		return ENODEV;
	}
	memset(&e, 0, sizeof(e));
	do {
		errno = 0;
		err = vb.ibv_get_async_event(ctx, &e) ? vb_null() : 0;
	} while (err == EINTR);
	if (err)
		return err == EIO ? ENODEV : err;
	ev->type = e.event_type;
	ev->handle = handle_of(object(&e, &about));
	ev->port = about || e.event_type == ABI_EVENT_DEVICE_FATAL ? 0 : e.element.port_num;
	vb.ibv_ack_async_event(&e);
	return 0;
}
