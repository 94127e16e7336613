// The functions of the libraries, found at run time.
#ifndef VERBENA_LIB_H
#define VERBENA_LIB_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi_cm.h"
#include "abi_verbs.h"
#include "shim.h"

// VB_VERBS lists what is used of libibverbs: whether it must be there, the version of
// the symbol, result, name, parameters. Two symbols exist in the oldest version only.
// Those that need not be there are NULL where they are not.
#define VB_VERBS(X) \
	X(1, "1.1", struct abi_device **, ibv_get_device_list, (int *)) \
	X(1, "1.1", void, ibv_free_device_list, (struct abi_device **)) \
	X(1, "1.1", uint64_t, ibv_get_device_guid, (struct abi_device *)) \
	X(0, "1.9", int, ibv_get_device_index, (struct abi_device *)) \
	X(1, "1.1", struct abi_context *, ibv_open_device, (struct abi_device *)) \
	X(1, "1.1", int, ibv_close_device, (struct abi_context *)) \
	X(1, "1.1", int, ibv_get_async_event, (struct abi_context *, struct abi_async_event *)) \
	X(1, "1.1", void, ibv_ack_async_event, (struct abi_async_event *)) \
	X(1, "1.1", int, ibv_query_device, (struct abi_context *, struct abi_device_attr *)) \
	X(1, "1.1", int, ibv_query_port, (struct abi_context *, uint8_t, struct abi_port_attr *)) \
	X(1, "1.1", int, ibv_query_gid, (struct abi_context *, uint8_t, int, union abi_gid *)) \
	X(0, "1.11", ssize_t, _ibv_query_gid_table, \
	  (struct abi_context *, struct abi_gid_entry *, size_t, uint32_t, size_t)) \
	X(1, "1.1", int, ibv_query_pkey, (struct abi_context *, uint8_t, int, uint16_t *)) \
	X(1, "1.1", struct abi_pd *, ibv_alloc_pd, (struct abi_context *)) \
	X(1, "1.1", int, ibv_dealloc_pd, (struct abi_pd *)) \
	X(1, "1.1", struct abi_mr *, ibv_reg_mr, (struct abi_pd *, void *, size_t, int)) \
	X(0, "1.7", struct abi_mr *, ibv_reg_mr_iova, (struct abi_pd *, void *, size_t, uint64_t, int)) \
	X(0, "1.8", struct abi_mr *, ibv_reg_mr_iova2, (struct abi_pd *, void *, size_t, uint64_t, unsigned int)) \
	X(0, "1.12", struct abi_mr *, ibv_reg_dmabuf_mr, (struct abi_pd *, uint64_t, size_t, uint64_t, int, int)) \
	X(1, "1.1", int, ibv_dereg_mr, (struct abi_mr *)) \
	X(1, "1.0", struct abi_comp_channel *, ibv_create_comp_channel, (struct abi_context *)) \
	X(1, "1.0", int, ibv_destroy_comp_channel, (struct abi_comp_channel *)) \
	X(1, "1.1", struct abi_cq *, ibv_create_cq, (struct abi_context *, int, void *, struct abi_comp_channel *, int)) \
	X(1, "1.1", int, ibv_resize_cq, (struct abi_cq *, int)) \
	X(1, "1.1", int, ibv_destroy_cq, (struct abi_cq *)) \
	X(1, "1.1", int, ibv_get_cq_event, (struct abi_comp_channel *, struct abi_cq **, void **)) \
	X(1, "1.1", void, ibv_ack_cq_events, (struct abi_cq *, unsigned int)) \
	X(1, "1.1", struct abi_srq *, ibv_create_srq, (struct abi_pd *, struct abi_srq_init_attr *)) \
	X(1, "1.1", int, ibv_modify_srq, (struct abi_srq *, struct abi_srq_attr *, int)) \
	X(1, "1.1", int, ibv_query_srq, (struct abi_srq *, struct abi_srq_attr *)) \
	X(1, "1.1", int, ibv_destroy_srq, (struct abi_srq *)) \
	X(1, "1.1", struct abi_qp *, ibv_create_qp, (struct abi_pd *, struct abi_qp_init_attr *)) \
	X(1, "1.1", int, ibv_query_qp, (struct abi_qp *, struct abi_qp_attr *, int, struct abi_qp_init_attr *)) \
	X(1, "1.1", int, ibv_modify_qp, (struct abi_qp *, struct abi_qp_attr *, int)) \
	X(1, "1.1", int, ibv_destroy_qp, (struct abi_qp *)) \
	X(1, "1.1", struct abi_ah *, ibv_create_ah, (struct abi_pd *, struct abi_ah_attr *)) \
	X(1, "1.1", int, ibv_destroy_ah, (struct abi_ah *)) \
	X(1, "1.1", int, ibv_attach_mcast, (struct abi_qp *, const union abi_gid *, uint16_t)) \
	X(1, "1.1", int, ibv_detach_mcast, (struct abi_qp *, const union abi_gid *, uint16_t))

// VB_CM is the same for librdmacm.
#define VB_CM(X) \
	X(1, "1.0", struct abi_event_channel *, rdma_create_event_channel, (void)) \
	X(1, "1.0", void, rdma_destroy_event_channel, (struct abi_event_channel *)) \
	X(1, "1.0", int, rdma_create_id, (struct abi_event_channel *, struct abi_cm_id **, void *, int)) \
	X(1, "1.0", int, rdma_destroy_id, (struct abi_cm_id *)) \
	X(1, "1.0", int, rdma_bind_addr, (struct abi_cm_id *, struct sockaddr *)) \
	X(1, "1.0", int, rdma_resolve_addr, (struct abi_cm_id *, struct sockaddr *, struct sockaddr *, int)) \
	X(1, "1.0", int, rdma_resolve_route, (struct abi_cm_id *, int)) \
	X(1, "1.0", int, rdma_connect, (struct abi_cm_id *, struct abi_conn_param *)) \
	X(1, "1.0", int, rdma_listen, (struct abi_cm_id *, int)) \
	X(1, "1.0", int, rdma_accept, (struct abi_cm_id *, struct abi_conn_param *)) \
	X(1, "1.0", int, rdma_reject, (struct abi_cm_id *, const void *, uint8_t)) \
	X(1, "1.0", int, rdma_notify, (struct abi_cm_id *, int)) \
	X(1, "1.0", int, rdma_disconnect, (struct abi_cm_id *)) \
	X(1, "1.0", int, rdma_get_cm_event, (struct abi_event_channel *, struct abi_cm_event **)) \
	X(1, "1.0", int, rdma_ack_cm_event, (struct abi_cm_event *)) \
	X(1, "1.0", struct abi_context **, rdma_get_devices, (int *)) \
	X(1, "1.0", void, rdma_free_devices, (struct abi_context **)) \
	X(1, "1.0", int, rdma_set_option, (struct abi_cm_id *, int, int, void *, size_t)) \
	X(1, "1.0", int, rdma_migrate_id, (struct abi_cm_id *, struct abi_event_channel *)) \
	X(1, "1.0", int, rdma_join_multicast, (struct abi_cm_id *, struct sockaddr *, void *)) \
	X(1, "1.0", int, rdma_leave_multicast, (struct abi_cm_id *, struct sockaddr *)) \
	X(0, "1.1", int, rdma_join_multicast_ex, (struct abi_cm_id *, struct abi_join_mc_attr_ex *, void *)) \
	X(1, "1.2", int, rdma_establish, (struct abi_cm_id *)) \
	X(1, "1.2", int, rdma_init_qp_attr, (struct abi_cm_id *, struct abi_qp_attr *, int *))

struct vb_lib {
#define VB_FIELD(must, version, result, name, params) result(*name) params;
	VB_VERBS(VB_FIELD)
	VB_CM(VB_FIELD)
#undef VB_FIELD
};

extern struct vb_lib vb;

// vb_errno turns what a function of the libraries gave into an errno: some give one,
// some -1 and leave it in errno, some a negative one. errno was set to 0 before.
static inline int vb_errno(int r)
{
	if (r >= 0)
		return r;
	if (r == -1)
		return errno ? errno : EIO;
	return -r;
}

// vb_null is the errno of a function that gave NULL.
static inline int vb_null(void) { return errno ? errno : EIO; }

// vb_scarce gives the errno of a call whose library takes a file that cannot be opened for a
// device that is not there: EMFILE or ENFILE in place of ENODEV and EAGAIN, if no file can be
// opened. vb_no_room says so if n files cannot be opened at a time; 0: they can.
int vb_scarce(int e);
int vb_no_room(int n);
// vb_look has the libraries look for devices, if they have not yet. It fails only for want of
// descriptors.
int vb_look(void);

// vb_verbs gives the extended context around one, if it reaches far enough to have an
// operation.
#define VB_EXTENDED(ctx, op) \
	((ctx)->abi_compat == (void *)UINTPTR_MAX && \
			 ((struct abi_verbs_context *)((char *)(ctx)-offsetof(struct abi_verbs_context, context)))->sz >= \
				 sizeof(struct abi_context) + offsetof(struct abi_verbs_context, context) - \
					 offsetof(struct abi_verbs_context, op) \
		 ? ((struct abi_verbs_context *)((char *)(ctx)-offsetof(struct abi_verbs_context, context)))->op \
		 : NULL)

// vb_group is a multicast group of an id.
struct vb_group {
	struct abi_cm_id *id;
	void *key;
	uint64_t handle;
	struct vb_addr addr;
	struct vb_group *next;
};

// vb_keep gives the key for an object whose first member is the library's; NULL: no
// memory. vb_kept gives the object of a key, if it is one, is there still, and is about
// theirs. vb_forget makes a key void.
void *vb_keep(void *object);
void *vb_kept(const void *key, const void *theirs);
void vb_forget(const void *key);

// vb_over says that an object of ctx is to be forgotten: the library gave 0, or could
// not destroy it as the device is gone.
static inline int vb_over(int async_fd, int e)
{
	return e == 0 || ((e == EIO || e == ENODEV || e == ENXIO) && vb_fd_gone(async_fd));
}

// vb_send_empty and vb_recv_empty make the slices of the first n places what Go expects:
// empty, and in their own memory, whatever was assigned to them.
static inline void vb_send_empty(struct vb_qp *q, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct vb_send *s = &q->send[i];

		s->sgl.at = q->sge + (size_t)i * q->sges;
		s->sgl.len = 0;
		s->sgl.cap = q->caps.send_sge;
		s->data.at = q->data + (size_t)i * q->caps.inline_data;
		s->data.len = 0;
		s->data.cap = q->caps.inline_data;
	}
}

static inline void vb_recv_empty(struct vb_rq *r, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct vb_recv *s = &r->recv[i];

		s->sgl.at = r->sge + (size_t)i * r->max_sge;
		s->sgl.len = 0;
		s->sgl.cap = r->max_sge;
	}
}

void vb_ah_out(struct vb_ah_attr *to, const struct abi_ah_attr *from);
void vb_ah_in(struct abi_ah_attr *to, const struct vb_ah_attr *from);
void vb_qp_attr_out(struct vb_qp_attr *to, const struct abi_qp_attr *from);
int vb_info(struct abi_device *d, struct vb_device_info *info);
// vb_readable: 1 if a descriptor is, 0 if not, -1 if it reports an error only.
int vb_readable(int fd);
int vb_nonblock(int fd);

#endif
