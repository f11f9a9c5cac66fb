package term

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// switchTries bounds the transactions of one change of a switch. Another caller changes it seldom.
const switchTries = 3

var (
	// ErrNotDryRun says that a loop is not in dry run, so that its flags alone decide.
	ErrNotDryRun = errors.New("the loop is not in --dry-run")
	// ErrNoSession says that this replica has no session with etcd.
	ErrNoSession = errors.New("no session with etcd")

	errSwitchContended = errors.New("the switch changed at the same time")
)

// switchValue is the value of the key of a switch.
type switchValue struct {
	// Loops are the loops of --dry-run that write, ordered, each once.
	Loops []string `json:"loops"`
}

func decodeSwitch(value []byte) (switchValue, error) {
	var v switchValue
	if err := json.Unmarshal(value, &v); err != nil {
		return switchValue{}, fmt.Errorf("read value: %w", err)
	}
	return v, nil
}

// with returns the value with a loop on or off.
func (v switchValue) with(loop string, on bool) switchValue {
	loops := slices.DeleteFunc(slices.Clone(v.Loops), func(name string) bool { return name == loop })
	if on {
		loops = append(loops, loop)
	}
	slices.Sort(loops)
	return switchValue{Loops: slices.Compact(loops)}
}

// dryRunLoops returns the loops of Config.DryRun.
func (c Config) dryRunLoops() []string {
	return strings.FieldsFunc(c.DryRun, func(r rune) bool { return r == ',' })
}

// SwitchLoop makes a loop of Config.DryRun write in every replica of the service, or only plan
// again. It returns after etcd has stored the change, under the session of this replica and only if
// no other change came between. Each replica follows when it learns of the change, see
// Config.OnSwitch; a restart keeps it. It returns ErrNotDryRun or ErrNoSession.
func (c *Candidate) SwitchLoop(ctx context.Context, loop string, on bool) error {
	if !slices.Contains(c.cfg.dryRunLoops(), loop) {
		return fmt.Errorf("loop %s: %w", loop, ErrNotDryRun)
	}
	s := c.published.Load().session
	if s == nil || s.lease.Remaining() == 0 {
		return ErrNoSession
	}
	return s.switchLoop(ctx, keysOf(c.cfg.Member.Cluster, c.cfg.Member.Service), c.cfg.Member.ID, loop, on)
}

// switchLoop changes the key of the switch as a member.
func (s *session) switchLoop(ctx context.Context, k keys, id, loop string, on bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for range switchTries {
		known, err := s.client.Get(ctx, k.switches)
		if err != nil {
			return fmt.Errorf("read switch %q: %w", k.switches, err)
		}
		before, revision := switchValue{}, int64(0)
		for _, entry := range known.Kvs {
			revision = entry.ModRevision
			if before, err = decodeSwitch(entry.Value); err != nil {
				return fmt.Errorf("switch %q: %w; delete it if nothing owns it", k.switches, err)
			}
		}
		next := before.with(loop, on)
		if slices.Equal(before.Loops, next.Loops) {
			return nil
		}
		write := clientv3.OpDelete(k.switches)
		if len(next.Loops) > 0 {
			value, err := json.Marshal(next)
			if err != nil {
				return err
			}
			write = clientv3.OpPut(k.switches, string(value))
		}
		response, err := s.client.Txn(ctx).If(
			clientv3.Compare(clientv3.CreateRevision(k.member(id)), "=", s.joined),
			clientv3.Compare(clientv3.ModRevision(k.switches), "=", revision),
		).Then(write).Commit()
		if err != nil {
			return fmt.Errorf("write switch %q: %w", k.switches, err)
		}
		if response.Succeeded {
			return nil
		}
	}
	return fmt.Errorf("switch %q: %w", k.switches, errSwitchContended)
}

// followSwitch tells Config.OnSwitch which loops write: once, and when that has changed.
func (r *replica) followSwitch() {
	loops := r.view.switched
	if r.toldSwitch && slices.Equal(loops, r.switchedOn) {
		return
	}
	if !slices.Equal(loops, r.switchedOn) {
		r.logger.Info("loops in dry run were switched", "write", loops, "wrote", r.switchedOn)
	}
	r.toldSwitch, r.switchedOn = true, loops
	if r.cfg.OnSwitch != nil {
		r.cfg.OnSwitch(loops)
	}
}

// dropSwitches removes the loops that are in --dry-run no more, so that a later dry run begins
// without writes. Only the member that joined first does it.
func (r *replica) dropSwitches(ctx context.Context) error {
	dryRun := r.cfg.dryRunLoops()
	for _, loop := range r.view.switched {
		if slices.Contains(dryRun, loop) || r.anchor().key != r.keys.member(r.cfg.Member.ID) {
			continue
		}
		if err := r.session.switchLoop(ctx, r.keys, r.cfg.Member.ID, loop, false); err != nil {
			return r.writeFailed(err)
		}
		r.logger.Info("loop writes by its flags; its switch was removed", "loop", loop)
	}
	return nil
}
