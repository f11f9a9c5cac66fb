package faultproxy

import (
	"io"
	"sync"
	"time"
)

// watchBody is the body of a watch. One goroutine reads it as fast as kube-apiserver writes it;
// Read delivers what the rules let pass.
type watchBody struct {
	request Request
	body    io.ReadCloser
	closed  func()
	ended   chan struct{}
	once    sync.Once

	mu      sync.Mutex // guards the following fields
	rules   []*rule
	chunks  []chunk
	err     error
	changed chan struct{} // closed and replaced at each change
}

type chunk struct {
	bytes   []byte
	arrived time.Time
	lag     time.Duration // of a link with loss
}

func newWatchBody(request Request, body io.ReadCloser) *watchBody {
	w := &watchBody{request: request, body: body, ended: make(chan struct{}), changed: make(chan struct{})}
	go w.fill()
	return w
}

func (w *watchBody) fill() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.body.Read(buffer)
		w.mu.Lock()
		if n > 0 {
			w.chunks = append(w.chunks, chunk{bytes: append([]byte(nil), buffer[:n]...), arrived: time.Now()})
		}
		w.err = err
		w.signal()
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// signal wakes Read. The caller holds mu.
func (w *watchBody) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watchBody) addIfSelected(added *rule) {
	if !added.ofWatches || !added.match(w.request) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(w.rules, added)
	w.signal()
}

// Read implements io.Reader. The error of the body comes after what was held.
func (w *watchBody) Read(into []byte) (int, error) {
	for {
		w.mu.Lock()
		changed, blocking, late := w.changed, w.blocking(), w.late()
		if blocking == nil && late <= 0 {
			if len(w.chunks) > 0 {
				n := copy(into, w.chunks[0].bytes)
				if w.chunks[0].bytes = w.chunks[0].bytes[n:]; len(w.chunks[0].bytes) == 0 {
					w.chunks = w.chunks[1:]
				}
				w.mu.Unlock()
				return n, nil
			}
			if w.err != nil {
				defer w.mu.Unlock()
				return 0, w.err
			}
		}
		w.mu.Unlock()

		var stopped <-chan struct{}
		var due <-chan time.Time
		if blocking != nil {
			stopped = blocking.stopped
		} else if late > 0 {
			due = time.After(late)
		}
		select {
		case <-changed:
		case <-stopped:
		case <-due:
		case <-w.ended:
			return 0, io.ErrClosedPipe
		}
	}
}

// blocking returns a rule that holds all events, and forgets the rules that ended. The caller holds
// mu.
func (w *watchBody) blocking() *rule {
	kept := w.rules[:0]
	var holding *rule
	for _, each := range w.rules {
		select {
		case <-each.stopped:
			continue
		default:
		}
		kept = append(kept, each)
		if each.hang {
			holding = each
		}
	}
	w.rules = kept
	return holding
}

// late returns how long the first chunk has still to wait. The caller holds mu.
func (w *watchBody) late() time.Duration {
	if len(w.chunks) == 0 {
		return 0
	}
	var delay time.Duration
	for _, each := range w.rules {
		delay = max(delay, each.delay)
	}
	if delay == 0 {
		return 0
	}
	return time.Until(w.chunks[0].arrived.Add(delay))
}

// Close implements io.Closer.
func (w *watchBody) Close() error {
	w.once.Do(func() {
		close(w.ended)
		if w.closed != nil {
			w.closed()
		}
	})
	return w.body.Close()
}
