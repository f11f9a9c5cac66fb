package baselinecontroller

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Together calls functions at the same time and returns when all have returned. A panic of one is a
// panic of the caller then, so that it costs a pass and not the process.
func Together(functions ...func()) {
	var running sync.WaitGroup
	panics := make(chan string, len(functions))
	for _, function := range functions {
		running.Go(func() {
			defer func() {
				if value := recover(); value != nil {
					panics <- fmt.Sprintf("%v\n%s", value, debug.Stack())
				}
			}()
			function()
		})
	}
	running.Wait()
	select {
	case first := <-panics:
		panic(first)
	default:
	}
}
