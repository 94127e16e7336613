package rdma_test

import (
	"errors"
	"reflect"
	"syscall"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
)

// TestNilAndZero: no method of a Conn or Listener that nobody made panics, and those that give
// an error give EINVAL, as in package net.
func TestNilAndZero(t *testing.T) {
	t.Parallel()
	var c *rdma.Conn
	var l *rdma.Listener
	for _, v := range []any{c, &rdma.Conn{}, l, &rdma.Listener{}} {
		x := reflect.ValueOf(v)
		for i := range x.NumMethod() {
			m, name := x.Method(i), x.Type().Method(i).Name
			t.Run(x.Type().Elem().Name()+"."+name, func(t *testing.T) {
				args := make([]reflect.Value, m.Type().NumIn())
				for j := range args {
					args[j] = reflect.Zero(m.Type().In(j))
				}
				out := m.Call(args)
				if err, ok := out[len(out)-1].Interface().(error); ok && !errors.Is(err, syscall.EINVAL) {
					t.Error(err)
				} else if m.Type().Out(len(out)-1) == reflect.TypeFor[error]() && !ok {
					t.Error("no error")
				}
			})
		}
	}
}
