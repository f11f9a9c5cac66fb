package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/clusterstate"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
)

// renewalTime is longer than the pause between two renewals of kube-controller-manager's Lease,
// which is two seconds.
const renewalTime = 5 * time.Second

// renewalPause is the pause between two looks for a renewal.
const renewalPause = time.Second

// observer looks at the cluster. One goroutine uses it.
type observer struct {
	command *command
	kube    *clusterstate.Kube
	gateway *grpc.ClientConn

	probe      *clusterstate.SliceProbe
	probeError string
	// apiServers and managers are all kube-apiservers and Pods of kube-controller-manager that were
	// seen.
	apiServers, managers programsSeen
}

// programsSeen are the names of programs that were seen.
type programsSeen map[string]bool

// stopped returns the programs that were seen and do not run now. One that is restarted may return
// with any flag.
func (p *programsSeen) stopped(running, ended []string) []string {
	if *p == nil {
		*p = programsSeen{}
	}
	for _, name := range slices.Concat(running, ended) {
		(*p)[name] = true
	}
	var names []string
	for name := range *p {
		if !slices.Contains(running, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// forget drops the last probe, before the next step.
func (o *observer) forget() { o.probe, o.probeError = nil, "" }

// lookFor looks at the cluster for the proof of a step, with a probe Service if it needs one. A
// probe proves silence only if kube-controller-manager led all the time. It takes 15 s, in which
// maybe no program writes, so it waits until it can prove something.
func (o *observer) lookFor(ctx context.Context, s step) facts {
	before := o.look(ctx)
	if !s.needsProbe || ctx.Err() != nil {
		return before
	}
	if s.byFlags && before.flagsDecide(o.command.direction.duty) {
		return before
	}
	if s.needsSilence {
		var leads bool
		if before, leads = o.awaitRenewal(ctx, before); !leads {
			before.probe, before.probeError = nil, "kube-controller-manager does not renew its Lease"
			return before
		}
		if began, _ := before.manager.Began(before.now); before.now.Before(began.Add(startTime)) {
			before.probe, before.probeError = nil, "kube-controller-manager has just started"
			return before
		}
	}
	enough := func(p clusterstate.SliceProbe) bool { return p.Upstream > 0 }
	probe, err := o.kube.ProbeSlices(ctx, o.command.probeNamespace, probeTime, enough)
	o.probe, o.probeError = &probe, ""
	if err != nil {
		o.probe, o.probeError = nil, err.Error()
		return o.look(ctx)
	}
	after := o.look(ctx)
	if s.needsSilence && probe.Upstream == 0 {
		var leads bool
		if after, leads = o.awaitRenewal(ctx, after); !leads || !after.manager.Acquired.Equal(before.manager.Acquired) {
			after.probe, after.probeError = nil, "kube-controller-manager ended or started during the probe"
		}
	}
	return after
}

// flagsDecide reports whether flags decide, or will when a Pod that is restarted runs again. A
// probe would take longer.
func (f facts) flagsDecide(duty diagnosis.Duty) bool {
	return f.flags(duty) != unclear || len(f.absentManagers) > 0
}

// awaitRenewal looks until kube-controller-manager has renewed its Lease, for renewalTime at most.
// Without a Lease, leader election is off.
func (o *observer) awaitRenewal(ctx context.Context, f facts) (facts, bool) {
	first := f.manager.Renewed
	for end := time.Now().Add(renewalTime); f.manager.LeaseFound && !f.manager.Renewed.After(first); {
		if time.Now().After(end) || !backoff.Sleep(ctx, renewalPause) {
			return f, false
		}
		if next := o.look(ctx); next.kubeError == "" {
			f = next
		}
	}
	return f, true
}

// look reads everything once. Each part has --timeout.
func (o *observer) look(ctx context.Context) facts {
	ctx, cancel := context.WithTimeout(ctx, o.command.Timeout)
	defer cancel()
	f := facts{now: time.Now(), probe: o.probe, probeError: o.probeError}
	gateway := make(chan func(*facts), 1)
	go func() { gateway <- o.lookAtGateway(ctx) }()
	if err := o.lookAtKube(ctx, &f); err != nil {
		f.kubeError = "kube-apiserver: " + err.Error()
	}
	(<-gateway)(&f)
	if o.command.direction.duty == diagnosis.Endpoints && f.kubeError == "" {
		if err := o.lookAtEndpoints(ctx, &f); err != nil {
			f.kubeError = "kube-apiserver: " + err.Error()
		}
	}
	began := f.now
	f.now = time.Now()
	f.took = f.now.Sub(began)
	return f
}

func (o *observer) lookAtGateway(ctx context.Context) func(*facts) {
	answer, err := clusterstate.GatewayStatus(ctx, o.gateway)
	if err != nil {
		return func(f *facts) { f.gatewayError = o.command.Gateway.Where() + ": " + status.Convert(err).Message() }
	}
	judged, missing := 0, ""
	if o.command.direction.duty == diagnosis.Nodes {
		judged, missing, err = clusterstate.JudgedNodes(ctx, o.gateway)
		if err != nil {
			missing = status.Convert(err).Message()
		}
	}
	return func(f *facts) {
		f.installation, f.judged = answer.Installation, judged
		if missing != "" {
			f.judged = 0 // not all are known
		}
	}
}

// switchLoop makes a loop in --dry-run write, or only plan again.
func (o *observer) switchLoop(ctx context.Context, to loopSwitch, validateOnly bool) error {
	ctx, cancel := context.WithTimeout(ctx, o.command.Timeout)
	defer cancel()
	_, err := shadowv1.NewShadowServiceClient(o.gateway).SwitchLoop(ctx, &shadowv1.SwitchLoopRequest{
		Name: "loops/" + to.loop, Service: to.service, Writes: to.writes, ValidateOnly: validateOnly,
	})
	return err
}

func (o *observer) lookAtKube(ctx context.Context, f *facts) error {
	var err error
	if f.manager, err = o.kube.Manager(ctx); err != nil {
		return err
	}
	duty := o.command.direction.duty
	if diagnosis.ControllerOf(duty) == "" {
		return nil
	}
	var running []string
	for _, program := range f.manager.Programs {
		running = append(running, program.Pod)
	}
	f.absentManagers = o.managers.stopped(running, f.manager.NotRunning)
	f.upstream, err = o.kube.UpstreamOf(ctx, duty, f.manager)
	f.nodes = f.upstream.Nodes
	return err
}

func (o *observer) lookAtEndpoints(ctx context.Context, f *facts) error {
	found, err := o.kube.EndpointFacts(ctx)
	if err != nil {
		return err
	}
	running, ended, err := o.kube.APIServers(ctx)
	if err != nil {
		return err
	}
	f.apiServers, f.stoppedServers = len(running), o.apiServers.stopped(running, ended)
	if len(o.command.etcd.Endpoints) > 0 {
		if found.Keys, found.KeysRead, err = o.kube.MasterLeases(ctx, o.command.etcd); err != nil {
			return err
		}
	}
	if f.keysRead = found.KeysRead; f.keysRead {
		for _, key := range found.Keys {
			if key.Alive {
				f.aliveKeys++
			}
		}
	}
	adopted, err := clusterstate.AdoptedKeys(ctx, o.gateway)
	if err == nil {
		f.unadopted = len(adopted)
		if !found.KeysRead {
			found.Keys = adopted
		}
	}
	f.upstream = diagnosis.UpstreamEndpoints(found, time.Now())
	return nil
}

// describe returns what the cluster shows now and the plan.
func describe(d direction, seen facts, steps []step) string {
	var text strings.Builder
	to := map[bool]string{true: "upstream → trivet", false: "trivet → upstream"}[d.toTrivet]
	fmt.Fprintf(&text, "%s: %s\n\nnow\n", d.duty, to)
	fmt.Fprintf(&text, "  upstream  %s\n", printer.Sanitize(seen.upstream.Sentence))
	fmt.Fprintf(&text, "  trivet    %s\n", printer.Sanitize(trivetNow(d.duty, seen)))
	fmt.Fprintln(&text, "\nplan")
	for i, s := range steps {
		fmt.Fprintf(&text, "  %d. %s\n", i+1, s.Title)
		if s.Change != "" {
			fmt.Fprintf(&text, "     change  %s\n", printer.Sanitize(s.Change))
		}
		fmt.Fprintf(&text, "     proof   %s\n", s.Proof)
	}
	if gap := d.gap(); gap != "" {
		fmt.Fprintf(&text, "  %s\n", gap)
	}
	text.WriteString("\n")
	return text.String()
}

func trivetNow(duty diagnosis.Duty, seen facts) string {
	if seen.gatewayError != "" {
		return "not known: " + seen.gatewayError
	}
	name, loop := diagnosis.LoopOf(duty)
	c := diagnosis.CarrierOf(seen.installation, duty)
	text := fmt.Sprintf("the loop %s of %s is on in %s", loop, name, printer.Count(len(c.On), "replica"))
	if !c.Since.IsZero() {
		text += ", since " + c.Since.UTC().Format(time.RFC3339)
	}
	if len(c.Off) > 0 {
		text += fmt.Sprintf(", and off in %d", len(c.Off))
	}
	return text
}

// waitingFor says which proof the command waits for, and what it saw last.
func waitingFor(i, all int, s step, o outcome) string {
	text := fmt.Sprintf("step %d of %d: %s", i+1, all, s.Title)
	if s.Change != "" {
		text += " Change " + s.Change + "."
	}
	return text + " Now: " + o.Saw
}
