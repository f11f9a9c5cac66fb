// Package migrate is `trivet migrate`: the hand-over of a duty between upstream's programs and
// Trivet, step by step.
//
// The command says which flag of which program to change, and waits until the cluster shows that it
// was changed. It changes no flag and no object of others. It switches a loop of Trivet that is in
// --dry-run, and creates a Service without Pods, whose EndpointSlice shows which program acts; the
// Service is removed at once. Every run looks at the cluster anew, so that an interrupted migration
// continues with the same command.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/etcdconn"
)

const (
	// leastPause is the shortest pause between two looks at the cluster. A look lists the metadata
	// of all objects of the duty, so a pause is also as long as the look before it took.
	leastPause = 500 * time.Millisecond
	// unclearTime is how long a proof stays unclear before --accept-unclear accepts it.
	unclearTime = 30 * time.Second
)

// command is one run of `trivet migrate`.
type command struct {
	client.Flags

	to             string
	dryRun         bool
	probe          bool
	probeNamespace string
	acceptUnclear  bool
	waitDuration   time.Duration
	etcd           etcdconn.Config

	streams   printer.Streams
	direction direction
	observer  *observer
}

// NewCommand returns `trivet migrate`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	c := command{streams: streams}
	cobraCommand := &cobra.Command{
		Use:   "migrate slices|mirroring|nodes|evictions|endpoints --to trivet|upstream",
		Short: "Plan the hand-over of a duty between upstream's programs and Trivet, and prove each step",
		Long: `Plan the hand-over of a duty, say which flag of which program to change, and wait for the proof of each step.

  slices     EndpointSlices: kube-controller-manager and slicesvc
  mirroring  EndpointSlices of hand-made Endpoints: kube-controller-manager and the loop endpointslice-mirroring of slicesvc
  nodes      node health: kube-controller-manager and the loop node-health of leasesvc
  evictions  evictions for taints: kube-controller-manager and the loop taint-eviction of leasesvc
  endpoints  the endpoints of default/kubernetes: kube-apiservers and bootstrapsvc

It changes no flag. A loop of Trivet that is in --dry-run is switched on, or off again, by this command: without a
roll-out, in all replicas at once, and as soon as the step before is proven. For slices it creates a Service without
Pods, which shows by its EndpointSlice which program acts, and removes it; --probe=false looks at managed fields and
flags only. It may be interrupted at any time: the same command continues.

Exit codes:
  0    Every step is proven, or the plan was printed with --dry-run.
  1    A step was not proven within --wait-duration.
  2    The cluster or the gateway gave no answer.
  64   The command line is wrong.
  130  Interrupted.`,
		Example: `  trivet migrate slices --to trivet --dry-run
  trivet migrate slices --to trivet
  trivet migrate endpoints --to trivet --etcd-endpoints https://10.0.0.1:2379 --etcd-ca-file ca.crt --etcd-cert-file tls.crt --etcd-key-file tls.key`,
		ValidArgs: duties(),
		RunE: func(cobraCommand *cobra.Command, args []string) error {
			if err := c.validate(args); err != nil {
				return err
			}
			c.direction = direction{duty: diagnosis.Duty(args[0]), toTrivet: c.to == "trivet", probe: c.probe}
			return c.run(cobraCommand.Context())
		},
	}
	c.Register(cobraCommand, streams, "text")
	fs := cobraCommand.Flags()
	fs.StringVar(&c.to, "to", "", "Which side carries the duty afterwards: trivet or upstream.")
	fs.BoolVar(&c.dryRun, "dry-run", false, "Print what the cluster shows now and the plan, and write nothing.")
	fs.BoolVar(&c.probe, "probe", true, "Create Services without Pods to see which program acts.")
	fs.StringVar(&c.probeNamespace, "probe-namespace", "default", "The namespace of these Services.")
	fs.BoolVar(&c.acceptUnclear, "accept-unclear", false, fmt.Sprintf("Continue after a step whose proof stays unclear for %s.", unclearTime))
	fs.DurationVar(&c.waitDuration, "wait-duration", time.Hour, "How long to wait for all proofs.")
	fs.StringSliceVar(&c.etcd.Endpoints, "etcd-endpoints", nil, "URLs of the members of the cluster's etcd, whose keys prove which kube-apiserver writes endpoints.")
	fs.StringVar(&c.etcd.CAFile, "etcd-ca-file", "", "PEM file with the authorities of etcd's certificates.")
	fs.StringVar(&c.etcd.CertFile, "etcd-cert-file", "", "PEM file with the client certificate for etcd.")
	fs.StringVar(&c.etcd.KeyFile, "etcd-key-file", "", "PEM file with the key of --etcd-cert-file.")
	client.CompleteFlag(cobraCommand, "to", "trivet", "upstream")
	return cobraCommand
}

func duties() []string {
	var names []string
	for _, duty := range diagnosis.Duties() {
		names = append(names, string(duty))
	}
	return names
}

func (c *command) validate(args []string) error {
	problems := append(c.Validate(), client.OneOf("--to", c.to, "trivet", "upstream"))
	if len(args) != 1 || !slices.Contains(duties(), args[0]) {
		problems = append(problems, fmt.Errorf("migrate takes one of %v, got %q", duties(), args))
	}
	if c.waitDuration <= 0 {
		problems = append(problems, fmt.Errorf("--wait-duration=%s: must be positive", c.waitDuration))
	}
	if c.probeNamespace == "" {
		problems = append(problems, errors.New("--probe-namespace: must not be empty"))
	}
	if c.Gateway.Server != "" && c.Gateway.Kubeconfig == "" && c.Gateway.Context == "" {
		problems = append(problems, errors.New("--server needs --kubeconfig or --context of the same cluster"))
	}
	if len(c.etcd.Endpoints) > 0 {
		problems = append(problems, c.etcd.Validate()...)
	}
	return exit.UsageError(problems...)
}

func (c *command) run(ctx context.Context) error {
	closeAll, err := c.open()
	if err != nil {
		return err
	}
	defer closeAll()
	seen := c.observer.look(ctx)
	if ctx.Err() != nil {
		return client.Interrupted()
	}
	if seen.kubeError != "" {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot see what the cluster does", Err: errors.New(seen.kubeError)}
	}
	steps := c.direction.steps(seen)
	if c.Output == "text" {
		if _, err := io.WriteString(c.streams.Out, describe(c.direction, seen, steps)); err != nil {
			return client.CannotPrint("plan", err)
		}
	}
	outcomes := make([]outcome, len(steps))
	if !c.dryRun {
		if err := c.maySwitch(ctx, seen, steps); err != nil {
			return err
		}
		err = c.follow(ctx, steps, outcomes)
	}
	if printed := c.Print(c.documentOf(seen, steps, outcomes), func() error { return nil }); printed != nil {
		return client.CannotPrint("plan", printed)
	}
	return err
}

// open connects to the cluster of the kubeconfig and to the gateway. It calls no server.
func (c *command) open() (closeAll func(), err error) {
	access, err := kubeaccess.Load(kubeaccess.Config{Kubeconfig: c.Gateway.Kubeconfig, Context: c.Gateway.Context, Env: c.streams.Env})
	if err != nil {
		return nil, err
	}
	kube, err := clusterstate.NewKube(access.REST)
	if err != nil {
		return nil, err
	}
	if c.Gateway.Server == "" { // the gateway of a local trivet-lab up would be that of another cluster
		c.Gateway.Context = cmp.Or(c.Gateway.Context, access.Context)
	}
	conn, err := c.Connect()
	if err != nil {
		kube.Close()
		return nil, err
	}
	c.observer = &observer{command: c, kube: kube, gateway: conn}
	return func() {
		_ = conn.Close()
		kube.Close()
	}, nil
}

// follow waits for the proof of each step in order. A step that was proven is not proven again.
func (c *command) follow(ctx context.Context, steps []step, outcomes []outcome) error {
	deadline := time.Now().Add(c.waitDuration)
	progress := c.Progress()
	defer progress.Stop()
	for i, s := range steps {
		c.observer.forget()
		if s.needsProbe { // which takes up to 20 s
			progress.Set(waitingFor(i, len(steps), s, outcome{Saw: "a probe Service is watched"}))
		}
		unclearSince := time.Now()
		for {
			seen := c.observer.lookFor(ctx, s)
			if ctx.Err() != nil {
				progress.Print(c.streams.Err, fmt.Sprintf("interrupted before the proof of step %d; run the same command to continue", i+1))
				return client.Interrupted()
			}
			result, saw := c.takeStep(ctx, &s, seen)
			outcomes[i] = outcome{result, saw}
			if result != unclear {
				unclearSince = time.Now()
			}
			accepted := c.acceptUnclear && result == unclear && time.Since(unclearSince) >= unclearTime
			if result == proven || accepted {
				if c.Output == "text" {
					progress.Print(c.streams.Out, reportOf(i, outcomes[i]))
				}
				break
			}
			if time.Now().After(deadline) {
				return &exit.Error{Code: exit.Findings, Summary: fmt.Sprintf("step %d is not proven after %s: %s", i+1, c.waitDuration, saw)}
			}
			progress.Set(waitingFor(i, len(steps), s, outcomes[i]))
			if !backoff.Sleep(ctx, max(leastPause, seen.took)) {
				continue // the next look reports the interrupt
			}
		}
	}
	if c.Output == "text" {
		progress.Print(c.streams.Out, fmt.Sprintf("√ %s: %s carries the duty", c.direction.duty, c.to))
	}
	return nil
}

// takeStep switches the loop of a step, once, and proves the step. A switch is stored as off even
// if no replica writes: one that has not learned of it would.
func (c *command) takeStep(ctx context.Context, s *step, seen facts) (state, string) {
	result, saw := s.prove(seen)
	if s.switches == nil || s.switched {
		return result, saw
	}
	to := s.switches(seen)
	if to == nil || to.writes && result == proven {
		return result, saw
	}
	if s.waits != nil {
		if why := s.waits(seen); why != "" {
			return pending, why
		}
	}
	if err := c.observer.switchLoop(ctx, *to, false); err != nil {
		return pending, fmt.Sprintf("the loop %s is not switched: %s", to.loop, status.Convert(err).Message())
	}
	s.switched = true
	return s.prove(c.observer.look(ctx)) // what was seen before the switch proves nothing
}

// maySwitch asks for each switch of the plan whether it would be accepted, before a person changes
// anything.
func (c *command) maySwitch(ctx context.Context, seen facts, steps []step) error {
	for _, s := range steps {
		if s.switches == nil {
			continue
		}
		to := s.switches(seen)
		if to == nil {
			continue
		}
		if err := c.observer.switchLoop(ctx, *to, true); err != nil {
			return c.NoAnswer(ctx, "switch of the loop "+to.loop, err)
		}
	}
	return nil
}

// reportOf returns the line of a step that ended.
func reportOf(i int, o outcome) string {
	mark := map[state]string{proven: "√", unclear: "‼"}[o.State]
	return fmt.Sprintf("%s step %d: %s", mark, i+1, printer.Sanitize(o.Saw))
}

// outcome is the last result of a step.
type outcome struct {
	State state  `json:"state"`
	Saw   string `json:"saw"`
}

// document is the answer for programs.
type document struct {
	Duty     diagnosis.Duty   `json:"duty"`
	To       string           `json:"to"`
	Upstream string           `json:"upstream"`
	Trivet   string           `json:"trivet"`
	Steps    []documentedStep `json:"steps"`
}

type documentedStep struct {
	Title  string `json:"title"`
	Change string `json:"change,omitempty"`
	Proof  string `json:"proof"`
	State  state  `json:"state,omitempty"`
	Saw    string `json:"saw,omitempty"`
}

func (c *command) documentOf(seen facts, steps []step, outcomes []outcome) document {
	d := document{Duty: c.direction.duty, To: c.to, Upstream: seen.upstream.Sentence, Trivet: trivetNow(c.direction.duty, seen)}
	for i, s := range steps {
		d.Steps = append(d.Steps, documentedStep{s.Title, s.Change, s.Proof, outcomes[i].State, outcomes[i].Saw})
	}
	return d
}
