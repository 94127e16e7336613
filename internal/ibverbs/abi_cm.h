// The binary interface of librdmacm as this package uses it; see abi_verbs.h.
#ifndef VERBENA_ABI_CM_H
#define VERBENA_ABI_CM_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "abi_verbs.h"

struct abi_event_channel {
	int fd;
};

union abi_sockaddr {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage storage;
};

struct abi_cm_id {
	struct abi_context *verbs; // NULL until the id is bound to a device
	struct abi_event_channel *channel;
	void *context;
	struct abi_qp *qp;
	struct {
		union abi_sockaddr src;
		union abi_sockaddr dst;
		uint64_t unused_256[5];
		void *path_rec;
		int num_paths;
	} route;
	int32_t ps;
	uint8_t port_num;
	void *event;
	void *send_cq_channel;
	struct abi_cq *send_cq;
	void *recv_cq_channel;
	struct abi_cq *recv_cq;
	struct abi_srq *srq;
	struct abi_pd *pd;
	int32_t qp_type;
};

struct abi_conn_param {
	const void *private_data;
	uint8_t private_data_len;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
	uint32_t qp_num;
};

struct abi_ud_param {
	const void *private_data;
	uint8_t private_data_len;
	struct abi_ah_attr ah_attr;
	uint32_t qp_num;
	uint32_t qkey;
};

struct abi_cm_event {
	struct abi_cm_id *id;
	struct abi_cm_id *listen_id;
	int32_t event;
	int status;
	union {
		struct abi_conn_param conn;
		struct abi_ud_param ud;
	} param;
};

struct abi_join_mc_attr_ex {
	uint32_t comp_mask;
	uint32_t join_flags;
	struct sockaddr *addr;
};

#define ABI_JOIN_ADDRESS 1
#define ABI_JOIN_FLAGS 2

enum {
	ABI_CM_ADDR_ERROR = 1,
	ABI_CM_CONNECT_REQUEST = 4,
	ABI_CM_DEVICE_REMOVAL = 11,
	ABI_CM_MULTICAST_JOIN = 12,
	ABI_CM_MULTICAST_ERROR = 13,
};

#endif
