package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trivet-dev/trivet/internal/identity"
)

// loadVariable holds the JSON of a plan. It makes this binary open a streamSet and send beats as
// ordered.
const loadVariable = "TRIVET_BENCH_LOAD"

// loadProcess is a streamSet in a separate process. A process may open 20,000 files, and each
// streamSet opens up to half as many connections, so several contenders need several processes.
type loadProcess struct {
	command *exec.Cmd
	orders  io.WriteCloser
	reports *bufio.Scanner
	anew    int64 // reopened streams so far
}

// plan describes the streamSet of a loadProcess.
type plan struct {
	Address              string
	KeepAlive            bool // etcd's heartbeats instead of leasesvc's
	Class                string
	Connections, Streams int
	Holders              int // per stream
	// TLS has the files of the clients, which the connections use in turn; none connects without
	// TLS.
	TLS []identity.Files
	// ServerName is the name in the certificate of the server.
	ServerName string
}

func (p plan) transports() ([]credentials.TransportCredentials, error) {
	if len(p.TLS) == 0 {
		return plaintext(), nil
	}
	var transports []credentials.TransportCredentials
	for _, files := range p.TLS {
		client, err := clientTLS(files, p.ServerName)
		if err != nil {
			return nil, err
		}
		transports = append(transports, credentials.NewTLS(client))
	}
	return transports, nil
}

func plaintext() []credentials.TransportCredentials {
	return []credentials.TransportCredentials{insecure.NewCredentials()}
}

// order tells a loadProcess how long and how often to send beats.
type order struct{ For, Pace time.Duration }

// report is the result of an order. The first report follows the opening of the streams.
type report struct {
	Beats int64
	Anew  int64 // reopened streams since the start
	Error string
}

// startLoad starts a loadProcess and waits until its streams are open.
func startLoad(p plan) (*loadProcess, error) {
	value, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &loadProcess{command: exec.Command(program)}
	t.command.Env = append(os.Environ(), loadVariable+"="+string(value))
	t.command.Stderr = os.Stderr
	t.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if t.orders, err = t.command.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := t.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.reports = bufio.NewScanner(output)
	if err := t.command.Start(); err != nil {
		return nil, err
	}
	if _, err := t.readReport(); err != nil {
		t.stopLoad()
		return nil, fmt.Errorf("gather a streamSet: %w", err)
	}
	return t, nil
}

// stopLoad ends the loadProcess and all its connections.
func (t *loadProcess) stopLoad() {
	_ = t.command.Process.Kill()
	_ = t.command.Wait()
}

// beat sends beats and returns the number of answered heartbeats.
func (t *loadProcess) beat(o order) (int64, error) {
	if err := json.NewEncoder(t.orders).Encode(o); err != nil {
		return 0, err
	}
	return t.readReport()
}

func (t *loadProcess) readReport() (int64, error) {
	if !t.reports.Scan() {
		return 0, errors.Join(errors.New("the process of the streamSet is gone"), t.reports.Err())
	}
	var r report
	if err := json.Unmarshal(t.reports.Bytes(), &r); err != nil {
		return 0, err
	}
	if r.Error != "" {
		return 0, errors.New(r.Error)
	}
	t.anew = r.Anew
	return r.Beats, nil
}

// runLoad opens a streamSet and executes orders until their input ends. It returns the exit code.
func runLoad(value string, orders io.Reader, reports io.Writer) int {
	say := json.NewEncoder(reports)
	if err := serveOrders(value, json.NewDecoder(orders), say); err != nil {
		_ = say.Encode(report{Error: err.Error()})
		return 1
	}
	return 0
}

func serveOrders(value string, orders *json.Decoder, say *json.Encoder) error {
	var p plan
	if err := json.Unmarshal([]byte(value), &p); err != nil {
		return err
	}
	ctx := context.Background()
	from := &sender{class: p.Class, holders: p.Holders}
	open := from.open
	if p.KeepAlive {
		open = keepAlive
	}
	transports, err := p.transports()
	if err != nil {
		return err
	}
	c, err := openStreamSet(ctx, p.Address, transports, open, p.Connections, p.Streams)
	if err != nil {
		return err
	}
	defer c.close()
	for done := (report{}); ; {
		if err := say.Encode(done); err != nil {
			return err
		}
		var o order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if done.Beats, err = c.beat(ctx, o.For, o.Pace); err != nil {
			return err
		}
		done.Anew = from.anew.Load()
	}
}
