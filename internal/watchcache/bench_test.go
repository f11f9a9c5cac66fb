package watchcache

import (
	"context"
	"fmt"
	"testing"
)

func filled(objects int) *Cache[*thing] {
	c := newCache(0)
	items := make([]*thing, objects)
	for i := range items {
		items[i] = th(fmt.Sprintf("nodes/node-%06d", i), 0)
	}
	c.Replace(items)
	return c
}

// Put costs the same for any number of objects.
func BenchmarkPut(b *testing.B) {
	for _, objects := range []int{1000, 150_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			c := filled(objects)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Put(th(fmt.Sprintf("nodes/node-%06d", i*7919%objects), i+1))
			}
		})
	}
}

// An event costs a reader the same for any number of objects.
func BenchmarkEvent(b *testing.B) {
	for _, objects := range []int{1000, 150_000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			c := filled(objects)
			ctx, cancel := context.WithCancel(context.Background())
			events, ended := make(chan struct{}), make(chan struct{})
			started := false
			go func() {
				defer close(ended)
				_ = c.Serve(ctx, Request[*thing]{}, func(e Event[*thing]) error {
					started = started || e.Type == bookmark
					if started {
						events <- struct{}{}
					}
					return nil
				})
			}()
			<-events
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Put(th("nodes/node-000007", i+1))
				<-events
			}
			cancel()
			<-ended
		})
	}
}

func BenchmarkInitialEvents(b *testing.B) {
	c := filled(150_000)
	done := context.Canceled
	b.ReportAllocs()
	for b.Loop() {
		_ = c.Serve(context.Background(), Request[*thing]{}, func(e Event[*thing]) error {
			if e.Type == bookmark {
				return done
			}
			return nil
		})
	}
}
