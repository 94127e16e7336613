package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// work is what the program does with a database, through whatever carries the connection:
// a pipeline, a large value, and messages. It compares all that comes back.
func work(ctx context.Context, addr string) error {
	db := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer db.Close()
	for _, step := range []struct {
		name string
		do   func(context.Context, *redis.Client) error
	}{{"pipeline", pipeline}, {"large value", large}, {"messages", messages}} {
		start := time.Now()
		if err := step.do(ctx, db); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%s: right, in %v\n", step.name, time.Since(start).Round(time.Millisecond))
	}
	return nil
}

const pipelined = 10_000

// pipeline sends many commands before it reads the first answer.
func pipeline(ctx context.Context, db *redis.Client) error {
	_, err := db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range pipelined {
			p.Set(ctx, fmt.Sprintf("key:%d", i), fmt.Sprintf("value %d", i*i), 0)
		}
		return nil
	})
	if err != nil {
		return err
	}
	cmds, err := db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range pipelined {
			p.Get(ctx, fmt.Sprintf("key:%d", i))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, cmd := range cmds {
		if got, want := cmd.(*redis.StringCmd).Val(), fmt.Sprintf("value %d", i*i); got != want {
			return fmt.Errorf("key:%d is %q, want %q", i, got, want)
		}
	}
	return nil
}

// large stores 8 MiB and fetches them.
func large(ctx context.Context, db *redis.Client) error {
	v := make([]byte, 0, 8<<20)
	for sum := sha256.Sum256(nil); len(v) < cap(v); sum = sha256.Sum256(sum[:]) {
		v = append(v, sum[:]...)
	}
	if err := db.Set(ctx, "large", v, 0).Err(); err != nil {
		return err
	}
	got, err := db.Get(ctx, "large").Bytes()
	if err == nil && !bytes.Equal(got, v) {
		err = errors.New("other bytes came back")
	}
	return err
}

// messages publishes to a channel and hears all of it in order.
func messages(ctx context.Context, db *redis.Client) error {
	sub := db.Subscribe(ctx, "news")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil { // subscribed
		return err
	}
	const n = 1000
	failed := make(chan error, 1)
	go func() {
		for i := range n {
			if err := db.Publish(ctx, "news", i).Err(); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i := range n {
		m, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		if m.Payload != fmt.Sprint(i) {
			return fmt.Errorf("message %d is %q", i, m.Payload)
		}
	}
	return <-failed
}
