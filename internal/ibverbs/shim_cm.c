//go:build linux && cgo

#include "lib.h"

int vb_cm_open(struct abi_event_channel **ch, int *fd)
{
	int e;

	*ch = NULL;
	if (!vb_has_cm())
		return VB_NO_LIBRARY;
	e = vb_look();
	if (e)
		return e;
	errno = 0;
	*ch = vb.rdma_create_event_channel();
	if (!*ch)
		return vb_scarce(vb_null());
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
	id->key = vb_keep(id);
	if (!id->key) {
		free(id);
		return ENOMEM;
	}
	e->id->context = id->key;
	ev->child = id;
	return 0;
}

// owner_of gives the id whose event it is: a request is its listener's.
static struct abi_cm_id *owner_of(const struct abi_cm_event *e)
{
	return e->event == ABI_CM_CONNECT_REQUEST ? e->listen_id : e->id;
}

// group_of gives the group of an event, which the library gives as private data.
static struct vb_group *group_of(const struct abi_cm_event *e)
{
	return vb_kept(e->param.ud.private_data, e->id);
}

// take copies an event of an id. What it points to is gone when it is acknowledged.
static int take(struct abi_cm_event *e, const struct vb_id *id, struct vb_cm_event *ev)
{
	struct abi_cm_id *owner = owner_of(e);
	struct vb_group *g;

	memset(ev, 0, offsetof(struct vb_cm_event, conn.private_data));
	ev->qkey = 0;
	memset(&ev->ah, 0, sizeof(ev->ah));
	ev->type = e->event;
	ev->status = e->status;
	if (e->event == ABI_CM_ADDR_ERROR && e->status == -1) // the library's own: it could not open the device
		ev->status = -vb_scarce(ENODEV);
	ev->handle = id->handle;
	ev->removed = e->event == ABI_CM_DEVICE_REMOVAL && e->id->verbs ? vb_device_of(e->id->verbs) : 0;
	if (e->event == ABI_CM_MULTICAST_JOIN || e->event == ABI_CM_MULTICAST_ERROR || owner->qp_type == ABI_QPT_UD) {
		ev->datagram = 1;
		ev->qkey = e->param.ud.qkey;
		ev->conn.qpn = e->param.ud.qp_num;
		vb_ah_out(&ev->ah, &e->param.ud.ah_attr);
		if (e->event == ABI_CM_MULTICAST_JOIN || e->event == ABI_CM_MULTICAST_ERROR)
			ev->handle = (g = group_of(e)) ? g->handle : 0;
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
	struct abi_cm_event *e;
	struct abi_cm_id *orphan;
	struct vb_id *id;
	int err;

	for (;;) {
		switch (vb_readable(ch->fd)) {
		case 0:
			return EAGAIN;
		case -1:
			return ENODEV;
		}
		e = NULL;
		do {
			errno = 0;
			err = vb.rdma_get_cm_event(ch, &e) ? vb_null() : 0;
		} while (err == EINTR);
		if (err == EAGAIN && (err = vb_scarce(EAGAIN)) != EAGAIN) {
			// There was an event, and the library has dropped it: so it does with a request
			// whose device it cannot open.
			memset(ev, 0, offsetof(struct vb_cm_event, conn.private_data));
			ev->type = ABI_CM_CONNECT_REQUEST;
			ev->status = -err;
			return 0;
		}
		if (err || !e)
			return err ? err : EAGAIN;
		id = vb_kept(owner_of(e)->context, owner_of(e));
		err = id ? take(e, id, ev) : 0;
		orphan = e->event == ABI_CM_CONNECT_REQUEST && (!id || err) ? e->id : NULL;
		// Destroying an id waits until its events are acknowledged, so one that cannot
		// be must never be destroyed.
		if (vb.rdma_ack_cm_event(e) && id)
			id->unacked++;
		if (orphan)
			vb.rdma_destroy_id(orphan);
		if (id)
			return err;
	}
}
