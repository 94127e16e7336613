#include "manager.h"

static int join(struct id *v, struct sockaddr *a, void *context)
{
	struct group *g = new(sizeof(*g));
	struct event *e;

	memcpy(&g->addr, a, a->sa_family == AF_INET ? sizeof(g->addr.in) : sizeof(g->addr.in6));
	g->context = context;
	g->next = v->groups;
	v->groups = g;
	W(live_groups)++;
	pthread_mutex_lock(&mu);
	e = emit(v, ABI_CM_MULTICAST_JOIN, 0);
	e->group = g;
	e->e.param.ud.private_data = context;
	e->e.param.ud.qp_num = 0xffffff;
	e->e.param.ud.qkey = 0x01234567;
	e->e.param.ud.ah_attr.grh.dgid.raw[0] = 0xff;
	pthread_mutex_unlock(&mu);
	return 0;
}

int rdma_join_multicast(struct abi_cm_id *id, struct sockaddr *a, void *context)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_join_multicast);

	DEVICE(v, "rdma_join_multicast");
	return minus(err ? err : join(v, a, context));
}

int rdma_join_multicast_ex(struct abi_cm_id *id, struct abi_join_mc_attr_ex *a, void *context)
{
	struct id *v = (struct id *)id;
	int err = ENTER(rdma_join_multicast_ex);

	DEVICE(v, "rdma_join_multicast_ex");
	return minus(err ? err : join(v, a->addr, context));
}

int rdma_leave_multicast(struct abi_cm_id *id, struct sockaddr *a)
{
	struct id *v = (struct id *)id;
	struct group **p, *g;
	int err = ENTER(rdma_leave_multicast);

	DEVICE(v, "rdma_leave_multicast");
	for (p = &v->groups; !err && (g = *p); p = &g->next)
		if (!memcmp(&g->addr, a, a->sa_family == AF_INET ? sizeof(g->addr.in) : sizeof(g->addr.in6)))
			break;
	if (!err && !*p)
		err = EADDRNOTAVAIL;
	if (err)
		return minus(err);
	if (g->fetched != g->acked)
		fake_violation("rdma_leave_multicast hangs: %u of %u events acknowledged", g->acked, g->fetched);
	*p = g->next;
	W(live_groups)--;
	return 0;
}
