//go:build linux && cgo

#include <arpa/inet.h>
#include <net/if.h>

#include "lib.h"

uint32_t vb_scope(const char *zone) { return if_nametoindex(zone); }

static struct sockaddr *addr_in(union abi_sockaddr *to, const struct vb_addr *a)
{
	memset(to, 0, sizeof(*to));
	switch (a->family) {
	case 4:
		to->in.sin_family = AF_INET;
		to->in.sin_port = htons(a->port);
		memcpy(&to->in.sin_addr, a->ip, 4);
		return &to->any;
	case 6:
		to->in6.sin6_family = AF_INET6;
		to->in6.sin6_port = htons(a->port);
		to->in6.sin6_scope_id = a->scope;
		memcpy(&to->in6.sin6_addr, a->ip, 16);
		return &to->any;
	}
	return NULL;
}

static void addr_out(struct vb_addr *to, const union abi_sockaddr *a)
{
	char zone[IF_NAMESIZE];

	memset(to, 0, sizeof(*to));
	switch (a->any.sa_family) {
	case AF_INET:
		to->family = 4;
		to->port = ntohs(a->in.sin_port);
		memcpy(to->ip, &a->in.sin_addr, 4);
		break;
	case AF_INET6:
		to->family = 6;
		to->port = ntohs(a->in6.sin6_port);
		to->scope = a->in6.sin6_scope_id;
		memcpy(to->ip, &a->in6.sin6_addr, 16);
		if (to->scope && if_indextoname(to->scope, zone))
			memcpy(to->zone, zone, sizeof(to->zone));
		break;
	}
}

int vb_id_create(struct abi_event_channel *ch, uint64_t handle, int ps, struct vb_id **id)
{
	struct vb_id *v = calloc(1, sizeof(*v));
	int e;

	if (!v)
		return ENOMEM;
	v->handle = handle;
	v->key = vb_keep(v);
	if (!v->key) {
		free(v);
		return ENOMEM;
	}
	errno = 0;
	e = vb_scarce(vb_errno(vb.rdma_create_id(ch, &v->id, v->key, ps)));
	if (e) {
		vb_forget(v->key);
		free(v);
		return e;
	}
	*id = v;
	return 0;
}

static void group_free(struct vb_group *g)
{
	vb_forget(g->key);
	free(g);
}

int vb_id_destroy(struct vb_id *v)
{
	struct vb_group *g;
	int e;

	if (v->unacked)
		return VB_UNACKED;
	errno = 0;
	e = vb_errno(vb.rdma_destroy_id(v->id));
	if (e)
		return e;
	while ((g = v->groups)) {
		v->groups = g->next;
		group_free(g);
	}
	vb_forget(v->key);
	free(v);
	return 0;
}

void vb_id_get(struct vb_id *v, struct vb_id_info *info)
{
	memset(info, 0, sizeof(*info));
	addr_out(&info->local, &v->id->route.src);
	addr_out(&info->remote, &v->id->route.dst);
	if (!v->id->verbs)
		return;
	memcpy(info->device, v->id->verbs->device->name, sizeof(info->device));
	info->device[sizeof(info->device) - 1] = 0;
	info->port = v->id->port_num;
}

int vb_id_migrate(struct vb_id *v, struct abi_event_channel *ch)
{
	if (v->unacked)
		return VB_UNACKED;
	errno = 0;
	return vb_errno(vb.rdma_migrate_id(v->id, ch));
}

int vb_id_bind(struct vb_id *v, const struct vb_addr *a)
{
	union abi_sockaddr s;

	errno = 0;
	return vb_scarce(vb_errno(vb.rdma_bind_addr(v->id, addr_in(&s, a))));
}

int vb_id_resolve_addr(struct vb_id *v, const struct vb_addr *src, const struct vb_addr *dst, int ms)
{
	union abi_sockaddr s, d;

	errno = 0;
	return vb_errno(vb.rdma_resolve_addr(v->id, addr_in(&s, src), addr_in(&d, dst), ms));
}

int vb_id_option(struct vb_id *v, int level, int name, void *value, size_t n)
{
	errno = 0;
	return vb_errno(vb.rdma_set_option(v->id, level, name, value, n));
}

int vb_id_listen(struct vb_id *v, int backlog)
{
	errno = 0;
	return vb_scarce(vb_errno(vb.rdma_listen(v->id, backlog)));
}

// Without a device the library follows a NULL pointer in what comes below: it is asked
// only for ids that have one.
#define NEEDS_DEVICE(v) \
	do { \
		if (!(v)->id->verbs) \
			return EINVAL; \
		errno = 0; \
	} while (0)

int vb_id_resolve_route(struct vb_id *v, int ms)
{
	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_resolve_route(v->id, ms));
}

// QP_ATTR_MASK has the bits that queue pairs know. Some kernels leave others in the mask
// of an InfiniBand path.
#define QP_ATTR_MASK 0x1fffff

int vb_id_qp_attr(struct vb_id *v, int state, struct vb_qp_attr *a, uint32_t *mask)
{
	struct abi_qp_attr attr;
	int m = 0, e;

	NEEDS_DEVICE(v);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = state;
	e = vb_errno(vb.rdma_init_qp_attr(v->id, &attr, &m));
	if (e)
		return e;
	vb_qp_attr_out(a, &attr);
	*mask = (uint32_t)m & QP_ATTR_MASK;
	return 0;
}

static struct abi_conn_param *conn_in(struct abi_conn_param *to, const struct vb_conn_param *p)
{
	memset(to, 0, sizeof(*to));
	to->private_data = p->private_len ? p->private_data : NULL;
	to->private_data_len = p->private_len;
	to->responder_resources = p->responder_resources;
	to->initiator_depth = p->initiator_depth;
	to->flow_control = p->flow_control;
	to->retry_count = p->retry_count;
	to->rnr_retry_count = p->rnr_retry_count;
	to->srq = p->srq;
	to->qp_num = p->qpn;
	return to;
}

int vb_id_connect(struct vb_id *v, const struct vb_conn_param *p)
{
	struct abi_conn_param c;

	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_connect(v->id, conn_in(&c, p)));
}

int vb_id_accept(struct vb_id *v, const struct vb_conn_param *p)
{
	struct abi_conn_param c;

	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_accept(v->id, conn_in(&c, p)));
}

int vb_id_reject(struct vb_id *v, const uint8_t *p, uint8_t n)
{
	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_reject(v->id, n ? p : NULL, n));
}

int vb_id_establish(struct vb_id *v)
{
	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_establish(v->id));
}

int vb_id_notify(struct vb_id *v, int event)
{
	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_notify(v->id, event));
}

int vb_id_disconnect(struct vb_id *v)
{
	NEEDS_DEVICE(v);
	return vb_errno(vb.rdma_disconnect(v->id));
}

int vb_id_join(struct vb_id *v, const struct vb_addr *a, uint32_t flags, uint64_t handle)
{
	union abi_sockaddr s;
	struct abi_join_mc_attr_ex attr = {ABI_JOIN_ADDRESS | ABI_JOIN_FLAGS, flags, addr_in(&s, a)};
	struct vb_group *g;
	int e;

	NEEDS_DEVICE(v);
	if (!vb.rdma_join_multicast_ex && flags)
		return VB_NO_JOIN_FLAGS;
	g = calloc(1, sizeof(*g));
	if (!g)
		return ENOMEM;
	g->id = v->id;
	g->key = vb_keep(g);
	if (!g->key) {
		free(g);
		return ENOMEM;
	}
	g->handle = handle;
	g->addr = *a;
	errno = 0;
	if (vb.rdma_join_multicast_ex)
		e = vb_errno(vb.rdma_join_multicast_ex(v->id, &attr, g->key));
	else
		e = vb_errno(vb.rdma_join_multicast(v->id, attr.addr, g->key));
	if (e) {
		group_free(g);
		return e;
	}
	g->next = v->groups;
	v->groups = g;
	return 0;
}

int vb_id_leave(struct vb_id *v, const struct vb_addr *a)
{
	union abi_sockaddr s;
	struct vb_group **p, *g;
	int e;

	NEEDS_DEVICE(v);
	if (v->unacked)
		return VB_UNACKED;
	e = vb_errno(vb.rdma_leave_multicast(v->id, addr_in(&s, a)));
	if (e)
		return e;
	for (p = &v->groups; (g = *p); p = &g->next) {
		if (g->addr.family == a->family && g->addr.scope == a->scope && !memcmp(g->addr.ip, a->ip, sizeof(a->ip))) {
			*p = g->next;
			group_free(g);
			break;
		}
	}
	return 0;
}
