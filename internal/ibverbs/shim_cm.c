//go:build linux && cgo

#include "lib.h"

int vb_cm_open(struct abi_event_channel **ch, int *fd)
{
	int e;

	errno = 0;
	*ch = vb.rdma_create_event_channel();
	if (!*ch)
		return vb_null();
	*fd = (*ch)->fd;
	e = vb_nonblock(*fd);
	if (e)
		vb.rdma_destroy_event_channel(*ch);
	return e;
}

void vb_cm_close(struct abi_event_channel *ch) { vb.rdma_destroy_event_channel(ch); }

static void conn_out(struct vb_conn_param *to, const struct abi_conn_param *from)
{
	to->responder_resources = from->responder_resources;
	to->initiator_depth = from->initiator_depth;
	to->flow_control = from->flow_control;
	to->retry_count = from->retry_count;
	to->rnr_retry_count = from->rnr_retry_count;
	to->srq = from->srq;
	to->qpn = from->qp_num;
}

static void private_out(struct vb_conn_param *to, const void *p, uint8_t n)
{
	if (!p)
		return;
	to->private_len = n;
	memcpy(to->private_data, p, n);
}

// child makes this package's side of the id of a request.
static int child(struct abi_cm_event *e, struct vb_cm_event *ev)
{
	struct vb_id *id = calloc(1, sizeof(*id));

	if (!id)
		return ENOMEM;
	id->id = e->id;
	e->id->context = id;
	ev->child = id;
	return 0;
}

// take copies an event. What it points to is gone when it is acknowledged.
static int take(struct abi_cm_event *e, struct vb_cm_event *ev)
{
	struct abi_cm_id *owner = e->event == ABI_CM_CONNECT_REQUEST ? e->listen_id : e->id;

	memset(ev, 0, offsetof(struct vb_cm_event, conn.private_data));
	ev->qkey = 0;
	memset(&ev->ah, 0, sizeof(ev->ah));
	ev->type = e->event;
	ev->status = e->status;
	ev->handle = ((struct vb_id *)owner->context)->handle;
	if (e->event == ABI_CM_MULTICAST_JOIN || e->event == ABI_CM_MULTICAST_ERROR || owner->qp_type == ABI_QPT_UD) {
		ev->datagram = 1;
		ev->qkey = e->param.ud.qkey;
		ev->conn.qpn = e->param.ud.qp_num;
		vb_ah_out(&ev->ah, &e->param.ud.ah_attr);
		if (e->event == ABI_CM_MULTICAST_JOIN || e->event == ABI_CM_MULTICAST_ERROR)
			ev->handle = *(const uint64_t *)e->param.ud.private_data;
		else
			private_out(&ev->conn, e->param.ud.private_data, e->param.ud.private_data_len);
	} else {
		conn_out(&ev->conn, &e->param.conn);
		private_out(&ev->conn, e->param.conn.private_data, e->param.conn.private_data_len);
	}
	return e->event == ABI_CM_CONNECT_REQUEST ? child(e, ev) : 0;
}

int vb_cm_next(struct abi_event_channel *ch, struct vb_cm_event *ev)
{
	struct abi_cm_event *e = NULL;
	struct abi_cm_id *orphan = NULL;
	int err;

	do {
		errno = 0;
		err = vb.rdma_get_cm_event(ch, &e) ? vb_null() : 0;
	} while (err == EINTR);
	if (err)
		return err;
	err = take(e, ev);
	if (err)
		orphan = e->id;
	vb.rdma_ack_cm_event(e);
	if (orphan)
		vb.rdma_destroy_id(orphan);
	return err;
}
