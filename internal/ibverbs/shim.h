// What Go sees of the C side: plain numbers, and structures of this package. Objects of
// the libraries are pointers to types that Go does not know.
//
// A function that can fail gives an errno, or 0. None keeps a pointer that it was given
// beyond its return, but for those into memory that C allocated, and for registered
// memory.
#ifndef VERBENA_SHIM_H
#define VERBENA_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define VB_BATCH 64

// What is missing, in place of an errno: the library has no such function, or the device's
// own library no such operation.
enum {
	VB_NO_LIBRARY = 10000,
	VB_NO_DATA_PATH, // poll_cq, req_notify_cq, post_send, post_recv
	VB_NO_SRQ_POST,  // post_srq_recv
	VB_NO_IOVA,      // ibv_reg_mr_iova, ibv_reg_mr_iova2
	VB_NO_DMABUF,    // ibv_reg_dmabuf_mr
	VB_NO_MW,        // alloc_mw, dealloc_mw
	VB_NO_CLOCK,     // query_rt_values
	VB_NO_MODIFY_CQ, // modify_cq
	VB_NO_JOIN_FLAGS, // rdma_join_multicast_ex
	VB_UNACKED,       // no call: it would wait for ever for an event that could not be acknowledged
};

// Loading.

#define VB_LIBIBVERBS "libibverbs.so.1"
#define VB_LIBRDMACM "librdmacm.so.1"

struct vb_library {
	int there;
	char why[512];    // what the loader said, if it did not find it
	char lacks[64];   // the first function that should be there and is not
	char version[32]; // of that function
};

struct vb_loaded {
	struct vb_library verbs, cm;
};

const struct vb_loaded *vb_load(void);
// They say whether a library's functions may be called. All objects come from functions
// that have asked.
int vb_has_verbs(void);
int vb_has_cm(void);

// Devices.

struct abi_context;

struct vb_device_info {
	char name[64];
	char dev_name[64]; // of the file below /dev/infiniband
	char path[256];
	uint64_t guid;
	int32_t node_type;
	int32_t transport;
	int32_t index; // -1: not known
};

// vb_list gives the devices in memory to be freed with vb_free.
int vb_list(struct vb_device_info **list, int *n);
void vb_free(void *p);
// vb_open opens the n-th device of that name once more (ibv_open_device).
int vb_open(const char *name, struct abi_context **ctx, struct vb_device_info *info);
// vb_open_shared gives the context of the connection manager, which stays open.
int vb_open_shared(const char *name, struct abi_context *not_this, struct abi_context **ctx, struct vb_device_info *info);
int vb_close(struct abi_context *ctx);

struct vb_device_attr {
	char fw[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_sizes, caps, max_dm_size;
	uint32_t vendor_id, vendor_part_id, hw_ver, odp_rc;
	int32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_mw, max_ah;
	int32_t max_qp_rd_atom, max_qp_init_rd_atom, max_srq, max_srq_wr, max_srq_sge;
	int32_t max_mcast_grp, max_mcast_qp_attach, atomic_cap, ports, comp_vectors;
	uint16_t max_pkeys, max_cq_count, max_cq_period;
	uint8_t ack_delay;
};

int vb_query_device(struct abi_context *ctx, struct vb_device_attr *a);

struct vb_port_attr {
	int32_t state, phys, link, max_mtu, active_mtu, gids, pkeys;
	uint32_t max_msg, caps;
	uint16_t caps2, lid, sm_lid;
	uint8_t width, speed, grh;
};

int vb_query_port(struct abi_context *ctx, int port, struct vb_port_attr *a);
// vb_clock reads the device's clock: whole seconds, and parts of one in ticks of a
// frequency in kHz.
int vb_clock(struct abi_context *ctx, uint64_t *seconds, uint64_t *ticks, uint64_t *khz);

struct vb_gid {
	uint8_t gid[16];
	uint32_t index, port, type, ifindex;
};

// vb_gid_table fills in up to n occupied entries and gives their number. EOPNOTSUPP: the
// library is too old to give them all at once.
int vb_gid_table(struct abi_context *ctx, struct vb_gid *g, uint32_t n, uint32_t *got);
int vb_query_gid(struct abi_context *ctx, int port, int index, uint8_t *gid);
int vb_query_pkey(struct abi_context *ctx, int port, int index, uint16_t *pkey);
// vb_fd_gone says that a descriptor reports an error and nothing to read.
int vb_fd_gone(int fd);
// vb_async_fd gives the descriptor of the asynchronous events, as long as ctx is open.
int vb_async_fd(struct abi_context *ctx);

// vb_hang_up closes the kernel's files of a context of vb_open_shared, and gives it back:
// it must not be used any more.
void vb_hang_up(struct abi_context *ctx);

// vb_device_of gives the library's device, to be compared only.
uintptr_t vb_device_of(struct abi_context *ctx);

// Memory.

struct abi_pd;
struct abi_mr;
struct abi_mw;
struct abi_ah;

struct vb_ah_attr {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t dlid;
	uint8_t sgid_index, hop_limit, traffic_class, sl, path_bits, rate, global, port;
};

int vb_alloc_pd(struct abi_context *ctx, struct abi_pd **pd);
int vb_dealloc_pd(struct abi_pd *pd);
int vb_reg_mr(struct abi_pd *pd, uintptr_t addr, size_t n, uint64_t iova, uint32_t access, struct abi_mr **mr,
	      uint32_t *lkey, uint32_t *rkey);
int vb_reg_dmabuf(struct abi_pd *pd, uint64_t off, size_t n, uint64_t iova, int fd, uint32_t access,
		  struct abi_mr **mr, uint32_t *lkey, uint32_t *rkey);
int vb_dereg_mr(struct abi_mr *mr);
int vb_alloc_mw(struct abi_pd *pd, int type, struct abi_mw **mw);
uint32_t vb_mw_rkey(struct abi_mw *mw);
int vb_dealloc_mw(struct abi_mw *mw);
int vb_create_ah(struct abi_pd *pd, const struct vb_ah_attr *a, struct abi_ah **ah);
int vb_destroy_ah(struct abi_ah *ah);

// Completions.

struct abi_comp_channel;
struct abi_cq;

// vb_wc has the layout of driver.WC.
struct vb_wc {
	uint64_t id;
	uint32_t byte_len, imm, qpn, src_qpn, vendor_err;
	uint8_t status, opcode, flags, sl, path_bits;
	uint16_t slid, pkey_index;
};

// vb_cq, vb_qp, vb_srq and vb_id are this package's sides of objects of the libraries,
// to which the pointer comes first. Key is what the library knows as their context.
struct vb_cq {
	struct abi_cq *cq;
	void *key;
	uint64_t handle;
	uint32_t unacked; // events that were taken and not acknowledged
	uint32_t entries;
	struct vb_wc wc[VB_BATCH];
};

int vb_create_channel(struct abi_context *ctx, struct abi_comp_channel **ch, int *fd);
int vb_destroy_channel(struct abi_comp_channel *ch);
// vb_channel_next takes one event: 0 and the queue's handle, EAGAIN if there is none,
// ENODEV if there will be none.
int vb_channel_next(uintptr_t ch, uint64_t *handle);
int vb_create_cq(struct abi_context *ctx, struct abi_comp_channel *ch, int entries, int vector, uint64_t handle,
		 struct vb_cq **cq);
// vb_destroy_cq acknowledges what was taken, and destroys. The channel must not be read
// meanwhile.
int vb_destroy_cq(struct vb_cq *cq);
int vb_resize_cq(struct vb_cq *cq, int entries);
int vb_modify_cq(struct vb_cq *cq, uint16_t count, uint16_t period);
// vb_poll fills cq->wc and gives the number, or -errno.
int vb_poll(uintptr_t cq);
// vb_poll_for polls until there is something, or ns nanoseconds, but not more than
// VB_SPIN_MAX, have passed.
int vb_poll_for(uintptr_t cq, int64_t ns);
#define VB_SPIN_MAX 50000
int vb_arm(uintptr_t cq, int solicited);
// vb_arm_poll arms for any completion and is vb_poll then. If that fails it gives
// VB_ARM_FAILED - errno, and has not polled.
int vb_arm_poll(uintptr_t cq);
#define VB_ARM_FAILED (-100000)

// Queue pairs.

struct abi_qp;
struct abi_srq;

// vb_sge has the layout of driver.SGE.
struct vb_sge {
	uint64_t addr;
	uint32_t len, lkey;
};

// vb_slice is a slice of Go, in memory of C.
struct vb_slice {
	void *at;
	intptr_t len, cap;
};

// vb_send has the layout of driver.SendSlot: a request as Go writes it. Its SGEs and its
// inline data are in the places that belong to it, which a post gives back empty.
struct vb_send {
	uint64_t id;
	struct vb_slice sgl, data;
	uint64_t addr, compare, swap, ah, mw, mr;
	uint32_t rkey, len, rights, imm, qpn, qkey, srqn;
	uint8_t opcode, flags;
};

// vb_recv has the layout of driver.RecvSlot.
struct vb_recv {
	uint64_t id;
	struct vb_slice sgl;
};

// vb_rq is a receive queue's batch, of a queue pair or shared.
struct vb_rq {
	uint32_t n, max_sge;
	struct vb_recv *recv;
	struct vb_sge *sge;
	struct abi_recv_wr *wr;
};

struct vb_qp_caps {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
};

struct vb_qp {
	struct abi_qp *qp;
	void *key;
	uint64_t handle;
	uint32_t num;
	uint32_t ud; // requests have an address handle
	struct vb_qp_caps caps;
	uint32_t n; // places of a batch of sends
	uint32_t sges; // of each place
	struct vb_send *send;
	struct vb_sge *sge;
	uint8_t *data;
	struct abi_send_wr *wr;
	struct vb_rq rq;
};

struct vb_srq {
	struct abi_srq *srq;
	void *key;
	uint64_t handle;
	uint32_t max_wr, max_sge;
	struct vb_rq rq;
};

struct vb_qp_attr {
	int32_t state, cur_state, path_mtu, mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qpn, access, rate_limit;
	struct vb_qp_caps caps;
	struct vb_ah_attr ah, alt_ah;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t sqd_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout;
	uint8_t retry_cnt, rnr_retry, alt_port, alt_timeout;
};

struct vb_qp_config {
	uint64_t handle;
	struct vb_cq *send_cq, *recv_cq;
	struct vb_srq *srq;
	struct vb_qp_caps caps;
	int32_t type, signal_all;
};

// A post gives the number of requests that were taken, and the errno of the next one in
// the upper half.
uint64_t vb_post_send(uintptr_t qp, uint32_t n);
uint64_t vb_post_recv(uintptr_t qp, uint32_t n);
uint64_t vb_post_srq(uintptr_t srq, uint32_t n);

int vb_create_qp(struct abi_pd *pd, const struct vb_qp_config *cfg, struct vb_qp **qp);
int vb_modify_qp(struct vb_qp *qp, const struct vb_qp_attr *a, uint32_t mask);
int vb_query_qp(struct vb_qp *qp, struct vb_qp_attr *a, uint32_t mask);
int vb_mcast(struct vb_qp *qp, const uint8_t *gid, uint16_t lid, int attach);
int vb_destroy_qp(struct vb_qp *qp);

int vb_create_srq(struct abi_pd *pd, uint64_t handle, uint32_t max_wr, uint32_t max_sge, uint32_t limit,
		  struct vb_srq **srq);
int vb_modify_srq(struct vb_srq *srq, int64_t max_wr, int64_t limit);
int vb_query_srq(struct vb_srq *srq, uint32_t *max_wr, uint32_t *limit);
int vb_destroy_srq(struct vb_srq *srq);

// Asynchronous events.

struct vb_async {
	uint64_t handle; // of the object, if the event is about one
	int32_t type, port;
};

// vb_async_next is to a device what vb_channel_next is to a channel.
int vb_async_next(struct abi_context *ctx, struct vb_async *ev);

// The connection manager. Calls that make, destroy or move an id, and vb_cm_next, must
// come one at a time in the process.

struct abi_event_channel;
struct abi_cm_id;
struct vb_group;

struct vb_id {
	struct abi_cm_id *id;
	void *key;
	uint64_t handle;
	struct vb_group *groups;
	uint32_t unacked; // events that the library did not let acknowledge: it waits for them
};

struct vb_addr {
	int32_t family; // 0: none, 4, 6
	uint8_t ip[16];
	uint16_t port; // host order
	uint32_t scope;
	char zone[16]; // the name of the interface scope, if it has one
};

struct vb_id_info {
	char device[64];
	int32_t port;
	struct vb_addr local, remote;
};

struct vb_conn_param {
	uint8_t private_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qpn;
	uint8_t private_data[256];
};

struct vb_cm_event {
	uint64_t handle;
	struct vb_id *child; // of a request: new, the caller's
	int32_t type, status;
	int32_t datagram; // ah and qkey are valid
	uintptr_t removed; // the device, of a removal
	struct vb_conn_param conn;
	struct vb_ah_attr ah;
	uint32_t qkey;
};

int vb_cm_open(struct abi_event_channel **ch, int *fd);
void vb_cm_close(struct abi_event_channel *ch);
int vb_cm_next(struct abi_event_channel *ch, struct vb_cm_event *ev);

int vb_id_create(struct abi_event_channel *ch, uint64_t handle, int ps, struct vb_id **id);
int vb_id_destroy(struct vb_id *id);
void vb_id_get(struct vb_id *id, struct vb_id_info *info);
int vb_id_migrate(struct vb_id *id, struct abi_event_channel *ch);
int vb_id_join(struct vb_id *id, const struct vb_addr *a, uint32_t flags, uint64_t handle);
int vb_id_leave(struct vb_id *id, const struct vb_addr *a);

int vb_id_bind(struct vb_id *id, const struct vb_addr *a);
int vb_id_resolve_addr(struct vb_id *id, const struct vb_addr *src, const struct vb_addr *dst, int ms);
int vb_id_resolve_route(struct vb_id *id, int ms);
int vb_id_qp_attr(struct vb_id *id, int state, struct vb_qp_attr *a, uint32_t *mask);
int vb_id_listen(struct vb_id *id, int backlog);
int vb_id_connect(struct vb_id *id, const struct vb_conn_param *p);
int vb_id_accept(struct vb_id *id, const struct vb_conn_param *p);
int vb_id_reject(struct vb_id *id, const uint8_t *p, uint8_t n);
int vb_id_establish(struct vb_id *id);
int vb_id_notify(struct vb_id *id, int event);
int vb_id_disconnect(struct vb_id *id);
int vb_id_option(struct vb_id *id, int level, int name, void *value, size_t n);
// vb_scope gives the number of an interface, 0 if there is none of that name.
uint32_t vb_scope(const char *zone);

#endif
