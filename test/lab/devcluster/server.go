package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

const (
	// startTimeout bounds one start of one server. A kube-apiserver needs 3 s on an idle machine
	// and may need a minute on a busy one.
	startTimeout = 2 * time.Minute
	pollEvery    = 50 * time.Millisecond
	// portAttempts is how many ports are tried if another process takes the chosen one before the
	// child listens.
	portAttempts = 5
)

// PortTakenError says that the port of a server is in use.
type PortTakenError struct {
	Server string // "etcd" or "kube-apiserver"
	Field  string // the field of Config that names the port
	Port   int
}

func (e *PortTakenError) Error() string {
	return fmt.Sprintf("%s cannot listen on 127.0.0.1:%d, the port is in use: stop the process that uses it, or set %s to another port (0: any free one)",
		e.Server, e.Port, e.Field)
}

// server is etcd or a kube-apiserver: how to start it, and its process. Cluster.mu guards it.
type server struct {
	name, path, dir string
	field           string // the field of Config that names the port
	port            int
	pinned          bool // the port was configured or has been published, so it must not change
	args            func(port int) []string
	ready           func(ctx context.Context, port int) error // nil once it is ready
	grace           time.Duration                             // from SIGTERM to SIGKILL
	logger          *slog.Logger

	child *childprocess.Child // nil while stopped
}

// startAll starts servers that may need each other, and returns when all are ready. After an error
// none of them runs.
func startAll(ctx context.Context, servers []*server) error {
	if len(servers) == 1 {
		return servers[0].start(ctx)
	}
	failed := make([]error, len(servers))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var starting sync.WaitGroup
	for i, s := range servers {
		starting.Go(func() {
			if failed[i] = s.start(ctx); failed[i] != nil {
				cancel(failed[i])
			}
		})
	}
	starting.Wait()
	err := errors.Join(failed...)
	if err != nil {
		for _, s := range servers {
			s.stop()
		}
	}
	return err
}

// start returns when the server is ready. After an error no process remains.
func (s *server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v", startTimeout))
	defer cancel()
	begin := time.Now()
	for attempt := 1; ; attempt++ {
		err := s.startOnce(ctx)
		if err == nil {
			s.pinned = true
			s.logger.Info("server is ready", "server", s.name, "port", s.port, "pid", s.child.PID(), "took", time.Since(begin).Round(time.Millisecond))
			return nil
		}
		taken := new(PortTakenError)
		if s.pinned || attempt == portAttempts || !errors.As(err, &taken) {
			return err
		}
		s.logger.Info("port is in use; trying another", "server", s.name, "port", taken.Port)
	}
}

func (s *server) startOnce(ctx context.Context) error {
	if err := s.choosePort(); err != nil {
		return err
	}
	child, err := childprocess.Start(childprocess.Config{
		Name: s.name, Path: s.path, Args: s.args(s.port), Dir: s.dir, Log: filepath.Join(s.dir, s.name+".log"), Grace: s.grace,
		Env: []string{"HOME=" + s.dir, "TMPDIR=" + s.dir}, Bare: true,
	})
	if err != nil {
		return err
	}
	if err := s.awaitReady(ctx, child); err != nil {
		_ = child.Stop() // the cause is err
		return err
	}
	s.child = child
	return nil
}

func (s *server) choosePort() error {
	if !s.pinned {
		port, err := FreePort()
		s.port = port
		return err
	}
	if !portIsFree(s.port) {
		return s.taken()
	}
	return nil
}

func (s *server) taken() error {
	return &PortTakenError{Server: s.name, Field: s.field, Port: s.port}
}

func (s *server) awaitReady(ctx context.Context, child *childprocess.Child) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := s.ready(ctx, s.port)
		if err == nil {
			return nil
		}
		select {
		case <-child.Exited():
			if tail, _ := child.LogTail(); strings.Contains(tail, "address already in use") {
				return s.taken()
			}
			return child.Death()
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w; last error: %w", s.name, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// stop stops the server. It is idempotent.
func (s *server) stop() {
	if s.child == nil {
		return
	}
	_ = s.child.Stop() // a server may have died before
	s.child = nil
}

// kill kills the server. It is idempotent.
func (s *server) kill() {
	if s.child == nil {
		return
	}
	s.child.Kill()
	s.child = nil
}

// Ports are below the range of local ports of outgoing connections (from 32768 on Linux). Otherwise
// a client that keeps dialling a stopped server could get the server's port as its local port,
// connect to itself, and block the port.
const (
	firstPort = 10000
	lastPort  = 29999
)

// givenPorts are the ports that FreePort has returned: the server of one may not listen yet, or not
// at the moment.
var givenPorts sync.Map

// FreePort returns a port that is free now and is no local port of outgoing connections. No other
// call in this process returns it.
func FreePort() (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if _, again := givenPorts.LoadOrStore(port, true); !again && portIsFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: 100 ports tried between %d and %d on 127.0.0.1 are all taken", firstPort, lastPort)
}

// FreeAddress returns the loopback address of a FreePort.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func portIsFree(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	listener.Close()
	return true
}
