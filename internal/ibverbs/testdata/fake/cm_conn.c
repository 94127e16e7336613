#include "manager.h"

int rdma_connect(struct abi_cm_id *id, struct abi_conn_param *p)
{
	struct id *v = (struct id *)id, *l, *child;
	struct event *e;
	int err = ENTER(rdma_connect);

	DEVICE(v, "rdma_connect");
	if (err || p->private_data_len > 56)
		return minus(err ? err : EINVAL);
	pthread_mutex_lock(&mu);
	for (l = ids; l; l = l->next)
		if (l->magic == MAGIC && l->state == LISTENING && l->id.route.src.in.sin_port == id->route.dst.in.sin_port)
			break;
	if (!l) {
		emit(v, 8, 8);
		pthread_mutex_unlock(&mu);
		return 0;
	}
	child = create(l->id.channel, l->id.context, l->id.ps);
	child->id.verbs = context(0);
	child->id.port_num = 1;
	child->id.route.src = l->id.route.src;
	child->id.route.dst = id->route.src;
	child->state = REQUEST;
	child->listener = l;
	child->peer = v;
	v->peer = child;
	v->state = ASKED;
	child->theirs = *p;
	e = emit(l, ABI_CM_CONNECT_REQUEST, 0);
	e->e.id = &child->id;
	e->e.listen_id = &l->id;
	conn(e, p, 56);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_accept(struct abi_cm_id *id, struct abi_conn_param *p)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_accept);

	DEVICE(v, "rdma_accept");
	if (!p)
		fake_violation("rdma_accept without parameters crashes");
	if (!err && (v->state != REQUEST || !v->peer || v->peer->magic != MAGIC))
		err = EINVAL;
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	v->state = ANSWERED;
	v->peer->theirs = *p;
	conn(emit(v->peer, 5, 0), p, 196);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_reject(struct abi_cm_id *id, const void *p, uint8_t n)
{
	struct id *v = (struct id *)id;
	struct abi_conn_param c = {.private_data = p, .private_data_len = n};
	int err = ENTER(rdma_reject);

	DEVICE(v, "rdma_reject");
	if (!err && (!v->peer || n > 148))
		err = EINVAL;
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	v->state = OVER;
	conn(emit(v->peer, 8, 28), &c, 148);
	v->peer->peer = NULL;
	v->peer = NULL;
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_establish(struct abi_cm_id *id)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_establish);

	DEVICE(v, "rdma_establish");
	if (err || !v->peer)
		return minus(err ? err : EINVAL);
	pthread_mutex_lock(&mu);
	v->state = v->peer->state = CONNECTED;
	emit(v->peer, 9, 0);
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_notify(struct abi_cm_id *id, int ev)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_notify);

	(void)ev;
	DEVICE(v, "rdma_notify");
	return minus(err ? err : v->state == CONNECTED ? EISCONN : 0);
}

int rdma_disconnect(struct abi_cm_id *id)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_disconnect);

	DEVICE(v, "rdma_disconnect");
	if (err)
		return minus(err);
	pthread_mutex_lock(&mu);
	if (v->state == CONNECTED) {
		v->state = OVER;
		emit(v, 10, 0);
		if (v->peer && v->peer->state == CONNECTED) {
			v->peer->state = OVER;
			emit(v->peer, 10, 0);
		}
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_init_qp_attr(struct abi_cm_id *id, struct abi_qp_attr *a, int *mask)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_init_qp_attr);

	DEVICE(v, "rdma_init_qp_attr");
	if (err)
		return minus(err);
	a->port_num = 1;
	switch (a->qp_state) {
	case 1:
		*mask = 1 | 1 << 3 | 1 << 4 | 1 << 5;
		if (id->qp_type == ABI_QPT_UD)
			*mask = 1 | 1 << 4 | 1 << 5 | 1 << 6;
		break;
	case 2:
		a->dest_qp_num = v->theirs.qp_num;
		a->path_mtu = 5;
		a->max_dest_rd_atomic = v->theirs.initiator_depth;
		a->ah_attr.is_global = 1;
		a->ah_attr.grh.dgid.raw[10] = a->ah_attr.grh.dgid.raw[11] = 0xff;
		memcpy(a->ah_attr.grh.dgid.raw + 12, "\x0a\x09\x00\x02", 4);
		a->ah_attr.grh.sgid_index = 1;
		a->ah_attr.grh.hop_limit = 64;
		a->ah_attr.port_num = 1;
		*mask = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
		break;
	case 3:
		a->timeout = v->timeout ? v->timeout : 18;
		a->retry_cnt = v->state == ASKED ? 5 : v->theirs.retry_count;
		a->rnr_retry = 7;
		a->max_rd_atomic = v->theirs.responder_resources;
		*mask = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
		break;
	}
	return 0;
}
