//go:build linux && cgo

#include "lib.h"

// handle gives what the object of an event is known by. The event is not acknowledged
// yet, so the object is still there.
static uint64_t object(const struct abi_async_event *e)
{
	switch (e->event_type) {
	case ABI_EVENT_CQ_ERR:
		return ((struct vb_cq *)e->element.cq->cq_context)->handle;
	case ABI_EVENT_QP_FATAL:
	case ABI_EVENT_QP_REQ_ERR:
	case ABI_EVENT_QP_ACCESS_ERR:
	case ABI_EVENT_COMM_EST:
	case ABI_EVENT_SQ_DRAINED:
	case ABI_EVENT_PATH_MIG:
	case ABI_EVENT_PATH_MIG_ERR:
	case ABI_EVENT_QP_LAST_WQE_REACHED:
		return ((struct vb_qp *)e->element.qp->qp_context)->handle;
	case ABI_EVENT_SRQ_ERR:
	case ABI_EVENT_SRQ_LIMIT_REACHED:
		return ((struct vb_srq *)e->element.srq->srq_context)->handle;
	}
	return 0;
}

int vb_async_next(struct abi_context *ctx, struct vb_async *ev)
{
	struct abi_async_event e;
	int err;

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
	ev->handle = object(&e);
	ev->port = ev->handle || e.event_type == ABI_EVENT_WQ_FATAL || e.event_type == ABI_EVENT_DEVICE_FATAL ? 0 : e.element.port_num;
	vb.ibv_ack_async_event(&e);
	return 0;
}
