package cm

import "github.com/verbena-rdma/verbena/verbs/driver"

// Driver gives the driver's id, for tests that post events.
func (id *ID) Driver() driver.CMID { return id.drv }
