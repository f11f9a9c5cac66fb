package faultcommand

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

const (
	listPath, breakPath, restorePath = faultcontroller.Path, faultcontroller.BreakPath, faultcontroller.RestorePath
	// callTimeout exceeds the start of a kube-apiserver.
	callTimeout = 150 * time.Second
	// completeTimeout limits the completion of names in a shell.
	completeTimeout = time.Second
	// maxAnswer limits the answer that is read.
	maxAnswer = 4 << 20
)

type (
	report       = faultcontroller.Report
	restoreReply = faultcontroller.RestoreReply
)

// caller calls the demo of this machine.
type caller struct {
	streams     printer.Streams
	lab, trivet string // paths of this executable and of trivet, for the suggested commands
}

func (c *caller) line(format string, args ...any) {
	fmt.Fprintln(c.streams.Out, printer.Sanitize(fmt.Sprintf(format, args...)))
}

// call sends a request, or reads without one, and decodes the answer.
func (c *caller) call(ctx context.Context, path string, request, answer any) error {
	socket, err := c.socket()
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = post(timed, socket, path, request, answer)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return client.Interrupted()
	}
	if _, coded := errors.AsType[*exit.Error](err); coded {
		return err
	}
	return &exit.Error{Code: exit.Undetermined, Summary: "the demo at " + socket + " did not do it", Err: err}
}

func post(ctx context.Context, socket, path string, request, answer any) error {
	method, body := http.MethodGet, []byte(nil)
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		method = http.MethodPost
	}
	call, err := http.NewRequestWithContext(ctx, method, "http://demo"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	call.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(call)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failure faultcontroller.Failure
		if err := json.Unmarshal(content, &failure); err != nil || failure.Error == "" {
			return fmt.Errorf("the demo answers %s", response.Status)
		}
		if response.StatusCode == http.StatusBadRequest {
			return &exit.Error{Code: exit.Usage, Err: errors.New(failure.Error)}
		}
		return errors.New(failure.Error)
	}
	if err := json.Unmarshal(content, answer); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

func completeHow(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	for _, info := range fault.Kinds() {
		if kind, _, err := parseTarget(args); err == nil && kind == info.Kind {
			return info.Hows, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (c *caller) completeTargets(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, info := range c.reportSoon(command).Kinds {
		switch {
		case len(args) == 0:
			names = append(names, string(info.Kind))
		case len(args) == 1 && args[0] == string(info.Kind):
			names = info.Targets
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c *caller) completeBroken(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, f := range c.reportSoon(command).Faults {
		switch {
		case len(args) == 0:
			names = append(names, string(f.Kind))
		case len(args) == 1 && args[0] == string(f.Kind):
			names = append(names, f.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// reportSoon returns the report, or the kinds alone if no demo answers soon.
func (c *caller) reportSoon(command *cobra.Command) report {
	r := report{Kinds: fault.Kinds()}
	socket, err := c.socket()
	if err != nil {
		return r
	}
	ctx, cancel := context.WithTimeout(command.Context(), completeTimeout)
	defer cancel()
	var answered report
	if post(ctx, socket, listPath, nil, &answered) != nil {
		return r
	}
	return answered
}
