package clusterpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	serviceName = "ControlPlane"
	socketName  = "socket"
)

// Socket returns the path of the socket of a run.
func Socket(runDir string) string { return filepath.Join(runDir, socketName) }

// session has the calls of one borrower.
type session struct {
	ctx  context.Context // ends with the pool; net/rpc gives calls none
	pool *Pool
	lent controlPlane // set by the first call; the borrower waits for it before the next one
}

// Borrow waits for a control plane and returns the access to it.
func (s *session) Borrow(_ struct{}, access *devcluster.Access) error {
	if s.lent != nil {
		return errors.New("this connection has a control plane already")
	}
	lent, err := s.pool.borrow(s.ctx)
	if err != nil {
		return err
	}
	s.lent = lent
	*access, err = lent.Access()
	return err
}

var operations = map[string]func(devcluster.Servers) error{
	"StopEtcd":       devcluster.Servers.StopEtcd,
	"StartEtcd":      devcluster.Servers.StartEtcd,
	"StopAPIServer":  devcluster.Servers.StopAPIServer,
	"StartAPIServer": devcluster.Servers.StartAPIServer,
	"Err":            devcluster.Servers.Err,
}

// Do runs one of the operations on the servers.
func (s *session) Do(operation string, _ *struct{}) error {
	run, found := operations[operation]
	if !found || s.lent == nil {
		return fmt.Errorf("%s: not an operation of a borrowed control plane", operation)
	}
	return run(s.lent)
}

// Borrow returns a control plane that no other process uses until this process ends. It may take as
// long as a start. Stop does not give the control plane back, because goroutines that run after
// Stop may still use it.
func Borrow(runDir string) (*devcluster.Cluster, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: Socket(runDir)})
	if err != nil {
		return nil, fmt.Errorf("borrow a control plane: %w", err)
	}
	untilExit, err := conn.File()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("borrow a control plane: %w", err), conn.Close())
	}
	return borrow(conn, untilExit)
}

// borrow returns the control plane of a connection. The connection ends when Stop was called and
// the duplicate is closed.
func borrow(conn net.Conn, duplicate *os.File) (*devcluster.Cluster, error) {
	b := borrowed{rpc.NewClient(conn), duplicate}
	var access devcluster.Access
	if err := b.client.Call(serviceName+".Borrow", struct{}{}, &access); err != nil {
		return nil, errors.Join(fmt.Errorf("borrow a control plane: %w", err), b.Close())
	}
	cluster, err := devcluster.Attach(access, b, b.Close)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return cluster, nil
}

// borrowed implements devcluster.Servers for the borrower.
type borrowed struct {
	client    *rpc.Client
	duplicate *os.File // of the connection; never closed, so it ends with the process
}

func (b borrowed) StopEtcd() error       { return b.do("StopEtcd") }
func (b borrowed) StartEtcd() error      { return b.do("StartEtcd") }
func (b borrowed) StopAPIServer() error  { return b.do("StopAPIServer") }
func (b borrowed) StartAPIServer() error { return b.do("StartAPIServer") }
func (b borrowed) Err() error            { return b.do("Err") }

func (b borrowed) do(operation string) error {
	return b.client.Call(serviceName+".Do", operation, &struct{}{})
}

// Close ends the calls.
func (b borrowed) Close() error { return b.client.Close() }
