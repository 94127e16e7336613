// The native blocking way, for comparison with docs/events.md: one thread for each source.
// Each function is the body of a thread and returns -1 with errno.
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// What the program does with events.
void on_cm(enum rdma_cm_event_type type, struct rdma_cm_id *id, int status);
void on_wc(struct ibv_wc *wc);
void on_async(enum ibv_event_type type);

int cm_thread(struct rdma_event_channel *channel) {
  struct rdma_cm_event *event;
  while (rdma_get_cm_event(channel, &event) == 0) {
    // Copy what is needed, private data too: it lies in the event.
    enum rdma_cm_event_type type = event->event;
    struct rdma_cm_id *id = event->id;
    int status = event->status;
    rdma_ack_cm_event(event); // before on_cm: rdma_destroy_id waits for it
    on_cm(type, id, status);
  }
  return -1;
}

int completion_thread(struct ibv_comp_channel *channel, struct ibv_cq *cq) {
  struct ibv_wc wc[64];
  for (;;) {
    int n;
    if (ibv_req_notify_cq(cq, 0))
      return -1;
    while ((n = ibv_poll_cq(cq, 64, wc)) > 0) // after the request, or a wake-up is lost
      for (int i = 0; i < n; i++)
        on_wc(&wc[i]);
    if (n < 0)
      return -1;
    struct ibv_cq *fired;
    void *context;
    if (ibv_get_cq_event(channel, &fired, &context))
      return -1;
    ibv_ack_cq_events(fired, 1); // ibv_destroy_cq waits for it
  }
}

int async_thread(struct ibv_context *device) {
  struct ibv_async_event event;
  while (ibv_get_async_event(device, &event) == 0) {
    enum ibv_event_type type = event.event_type;
    ibv_ack_async_event(&event); // ibv_destroy_qp and its like wait for it
    on_async(type);
  }
  return -1;
}
