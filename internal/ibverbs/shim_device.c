//go:build linux && cgo

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "lib.h"

void vb_free(void *p) { free(p); }

static void copy_name(char *to, const char *from, size_t n)
{
	memcpy(to, from, n);
	to[n - 1] = 0;
}

int vb_info(struct abi_device *d, struct vb_device_info *info)
{
	memset(info, 0, sizeof(*info));
	copy_name(info->name, d->name, sizeof(info->name));
	copy_name(info->dev_name, d->dev_name, sizeof(info->dev_name));
	copy_name(info->path, d->ibdev_path, sizeof(info->path));
	info->guid = be64toh(vb.ibv_get_device_guid(d));
	info->node_type = d->node_type;
	info->transport = d->transport_type;
	info->index = vb.ibv_get_device_index ? vb.ibv_get_device_index(d) : -1;
	return 0;
}

int vb_no_room(int n)
{
	int fd = open("/", O_RDONLY | O_CLOEXEC), e = 0;

	if (fd < 0)
		return errno == EMFILE || errno == ENFILE ? errno : 0;
	if (n > 1)
		e = vb_no_room(n - 1);
	close(fd);
	return e;
}

// A device has two files, and is looked for with another.
#define DEVICE_FILES 3

int vb_scarce(int e)
{
	int none;

	if (e != ENODEV && e != EAGAIN)
		return e;
	none = vb_no_room(DEVICE_FILES);
	return none ? none : e;
}

// The first list makes the library look for its drivers, once for the process: those whose
// files it cannot open then it never has. It opens a few at a time.
#define FIRST_FILES 8
static int looked;

// list gets the list of the library. A kernel without RDMA has no devices, which is no
// error.
static int list(struct abi_device ***devs, int *n)
{
	int e;

	*devs = NULL;
	*n = 0;
	if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE) && (e = vb_no_room(FIRST_FILES)))
		return e;
	errno = 0;
	*devs = vb.ibv_get_device_list(n);
	__atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
	if (*devs && *n > 0)
		return 0;
	e = *devs || errno == ENOSYS || errno == ENOENT ? 0 : vb_null();
	if (!e)
		e = vb_no_room(1);
	if (e && *devs) {
		vb.ibv_free_device_list(*devs);
		*devs = NULL;
	}
	return e;
}

int vb_look(void)
{
	struct abi_device **devs;
	int n, e;

	if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE))
		return 0;
	e = list(&devs, &n);
	if (devs)
		vb.ibv_free_device_list(devs);
	return e == EMFILE || e == ENFILE ? e : 0;
}

int vb_list(struct vb_device_info **infos, int *n)
{
	struct abi_device **devs;
	int i, e;

	*infos = NULL;
	*n = 0;
	if (!vb_has_verbs())
		return VB_NO_LIBRARY;
	e = list(&devs, n);
	if (e || !devs)
		return e;
	*infos = calloc(*n + 1, sizeof(**infos));
	for (i = 0; *infos && i < *n; i++)
		vb_info(devs[i], &(*infos)[i]);
	vb.ibv_free_device_list(devs);
	return *infos ? 0 : ENOMEM;
}

int vb_open(const char *name, struct abi_context **ctx, struct vb_device_info *info)
{
	struct abi_device **devs;
	int i, n, e;

	*ctx = NULL;
	if (!vb_has_verbs())
		return VB_NO_LIBRARY;
	e = list(&devs, &n);
	if (e)
		return e;
	e = ENODEV;
	for (i = 0; i < n; i++) {
		if (strcmp(devs[i]->name, name))
			continue;
		vb_info(devs[i], info);
		errno = 0;
		*ctx = vb.ibv_open_device(devs[i]);
		e = *ctx ? vb_nonblock((*ctx)->async_fd) : vb_null();
		if (e && *ctx)
			vb.ibv_close_device(*ctx);
		break;
	}
	if (devs)
		vb.ibv_free_device_list(devs);
	return e;
}

// vb_open_shared asks the connection manager for its contexts. The one that is found is
// kept: giving it back would let the manager close it. The others are given back.
int vb_open_shared(const char *name, struct abi_context *not_this, struct abi_context **ctx, struct vb_device_info *info)
{
	struct abi_context **all;
	struct abi_device **devs;
	int i, n = 0, e;

	*ctx = NULL;
	if (!vb_has_cm())
		return VB_NO_LIBRARY;
	// A device that the manager cannot open here it never opens again.
	e = list(&devs, &n);
	if (devs)
		vb.ibv_free_device_list(devs);
	if (!e)
		e = vb_no_room((n < 64 ? n : 64) * DEVICE_FILES);
	if (e)
		return e;
	e = ENODEV;
	errno = 0;
	all = vb.rdma_get_devices(&n);
	if (!all)
		return vb_null();
	for (i = 0; i < n; i++) {
		if (!all[i] || all[i] == not_this || strcmp(all[i]->device->name, name))
			continue;
		e = vb_nonblock(all[i]->async_fd);
		if (e)
			break;
		*ctx = all[i];
		vb_info(all[i]->device, info);
		all[i] = all[n - 1];
		all[n - 1] = NULL;
		break;
	}
	vb.rdma_free_devices(all);
	return e;
}

int vb_close(struct abi_context *ctx)
{
	errno = 0;
	return vb_errno(vb.ibv_close_device(ctx));
}

int vb_query_device(struct abi_context *ctx, struct vb_device_attr *a)
{
	struct abi_query_device_ex_input in = {0};
	struct abi_device_attr_ex x;
	struct abi_device_attr *o = &x.orig;
	int (*ex)(struct abi_context *, const struct abi_query_device_ex_input *, struct abi_device_attr_ex *, size_t);
	int e = EOPNOTSUPP;

	memset(&x, 0, sizeof(x));
	memset(a, 0, sizeof(*a));
	errno = 0;
	ex = VB_EXTENDED(ctx, query_device_ex);
	if (ex)
		e = vb_errno(ex(ctx, &in, &x, sizeof(x)));
	if (e == EOPNOTSUPP || e == ENOSYS) {
		memset(&x, 0, sizeof(x));
		e = vb_errno(vb.ibv_query_device(ctx, o));
		x.device_cap_flags_ex = o->device_cap_flags;
		x.phys_port_cnt_ex = o->phys_port_cnt;
	}
	if (e)
		return e;
	copy_name(a->fw, o->fw_ver, sizeof(a->fw));
	a->node_guid = be64toh(o->node_guid);
	a->sys_image_guid = be64toh(o->sys_image_guid);
	a->max_mr_size = o->max_mr_size;
	a->page_sizes = o->page_size_cap;
	a->caps = x.device_cap_flags_ex | o->device_cap_flags;
	a->max_dm_size = x.max_dm_size;
	a->vendor_id = o->vendor_id;
	a->vendor_part_id = o->vendor_part_id;
	a->hw_ver = o->hw_ver;
	a->odp_rc = x.odp_general & 1 ? x.odp_rc : 0;
	a->max_qp = o->max_qp;
	a->max_qp_wr = o->max_qp_wr;
	a->max_sge = o->max_sge;
	a->max_sge_rd = o->max_sge_rd;
	a->max_cq = o->max_cq;
	a->max_cqe = o->max_cqe;
	a->max_mr = o->max_mr;
	a->max_pd = o->max_pd;
	a->max_mw = o->max_mw;
	a->max_ah = o->max_ah;
	a->max_qp_rd_atom = o->max_qp_rd_atom;
	a->max_qp_init_rd_atom = o->max_qp_init_rd_atom;
	a->max_srq = o->max_srq;
	a->max_srq_wr = o->max_srq_wr;
	a->max_srq_sge = o->max_srq_sge;
	a->max_mcast_grp = o->max_mcast_grp;
	a->max_mcast_qp_attach = o->max_mcast_qp_attach;
	a->atomic_cap = o->atomic_cap;
	a->ports = x.phys_port_cnt_ex ? (int)x.phys_port_cnt_ex : o->phys_port_cnt;
	a->comp_vectors = ctx->num_comp_vectors;
	a->max_pkeys = o->max_pkeys;
	a->max_cq_count = x.max_cq_count;
	a->max_cq_period = x.max_cq_period;
	a->ack_delay = o->local_ca_ack_delay;
	return 0;
}

int vb_query_port(struct abi_context *ctx, int port, struct vb_port_attr *a)
{
	struct abi_port_attr p;
	int (*ex)(struct abi_context *, uint8_t, struct abi_port_attr *, size_t);
	int e;

	memset(&p, 0, sizeof(p));
	errno = 0;
	if (port < 1 || port > UINT8_MAX)
		return EINVAL;
	ex = VB_EXTENDED(ctx, query_port);
	e = vb_errno(ex ? ex(ctx, port, &p, sizeof(p)) : vb.ibv_query_port(ctx, port, &p));
	if (e)
		return e;
	a->state = p.state;
	a->phys = p.phys_state;
	a->link = p.link_layer;
	a->max_mtu = p.max_mtu;
	a->active_mtu = p.active_mtu;
	a->gids = p.gid_tbl_len > 0 ? p.gid_tbl_len : 0;
	a->pkeys = p.pkey_tbl_len;
	a->max_msg = p.max_msg_sz;
	a->caps = p.port_cap_flags;
	a->caps2 = p.port_cap_flags2;
	a->lid = p.lid;
	a->sm_lid = p.sm_lid;
	a->width = p.active_width;
	a->speed = p.active_speed;
	a->grh = p.flags & ABI_QPF_GRH_REQUIRED;
	return 0;
}

int vb_clock(struct abi_context *ctx, uint64_t *seconds, uint64_t *ticks, uint64_t *khz)
{
	struct abi_values_ex v = {.comp_mask = ABI_VALUES_RAW_CLOCK};
	struct abi_query_device_ex_input in = {0};
	struct abi_device_attr_ex x;
	int (*query)(struct abi_context *, struct abi_values_ex *);
	int (*ex)(struct abi_context *, const struct abi_query_device_ex_input *, struct abi_device_attr_ex *, size_t);
	int e;

	query = VB_EXTENDED(ctx, query_rt_values);
	ex = VB_EXTENDED(ctx, query_device_ex);
	if (!query || !ex)
		return VB_NO_CLOCK;
	errno = 0;
	e = vb_errno(query(ctx, &v));
	if (e)
		return e;
	if (!*khz) {
		memset(&x, 0, sizeof(x));
		errno = 0;
		e = vb_errno(ex(ctx, &in, &x, sizeof(x)));
		if (e)
			return e;
		*khz = x.hca_core_clock;
	}
	if (!*khz || !(v.comp_mask & ABI_VALUES_RAW_CLOCK))
		return VB_NO_CLOCK;
	*seconds = v.raw_clock.tv_sec;
	*ticks = v.raw_clock.tv_nsec;
	return 0;
}

int vb_gid_table(struct abi_context *ctx, struct vb_gid *g, uint32_t n, uint32_t *got)
{
	struct abi_gid_entry *t;
	ssize_t r;
	uint32_t i;
	int e = 0;

	if (!vb._ibv_query_gid_table)
		return EOPNOTSUPP;
	t = calloc(n, sizeof(*t));
	if (!t)
		return ENOMEM;
	errno = 0;
	r = vb._ibv_query_gid_table(ctx, t, n, 0, sizeof(*t));
	if (r < 0)
		e = (int)-r; // always a negative errno
	else if (r > n)
		r = n;
	for (i = 0; !e && i < (uint32_t)r; i++) {
		memcpy(g[i].gid, t[i].gid.raw, sizeof(g[i].gid));
		g[i].index = t[i].gid_index;
		g[i].port = t[i].port_num;
		g[i].type = t[i].gid_type;
		g[i].ifindex = t[i].ndev_ifindex;
	}
	*got = e ? 0 : (uint32_t)r;
	free(t);
	return e;
}

int vb_query_gid(struct abi_context *ctx, int port, int index, uint8_t *gid)
{
	union abi_gid g;
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_query_gid(ctx, port, index, &g));
	if (!e)
		memcpy(gid, g.raw, sizeof(g.raw));
	return e;
}

int vb_query_pkey(struct abi_context *ctx, int port, int index, uint16_t *pkey)
{
	uint16_t k = 0;
	int e;

	errno = 0;
	e = vb_errno(vb.ibv_query_pkey(ctx, port, index, &k));
	*pkey = ntohs(k);
	return e;
}

int vb_async_fd(struct abi_context *ctx) { return ctx->async_fd; }

int vb_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return errno;
	return 0;
}

int vb_readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;

	do
		n = poll(&p, 1, 0);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return 0;
	return p.revents & POLLIN ? 1 : -1;
}

int vb_fd_gone(int fd) { return vb_readable(fd) < 0; }

// In place of the files comes the end of a pipe that nobody writes to: poll reports an
// error and no data, and every command fails.
void vb_hang_up(struct abi_context *ctx)
{
	struct abi_context **list;
	int p[2];

	if (pipe2(p, O_CLOEXEC))
		return; // then the files stay until the process ends
	close(p[1]);
	dup3(p[0], ctx->cmd_fd, O_CLOEXEC);
	dup3(p[0], ctx->async_fd, O_CLOEXEC);
	close(p[0]);
	if (!vb_has_cm())
		return;
	list = calloc(2, sizeof(*list)); // as rdma_get_devices makes one; it is freed
	if (!list)
		return;
	list[0] = ctx;
	vb.rdma_free_devices(list);
}

uintptr_t vb_device_of(struct abi_context *ctx) { return (uintptr_t)ctx->device; }
