package robustness

import (
	"context"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// programInjections has the faults of the programs and of their links. Each is over when its
// function returns.
func programInjections() map[schedule.Kind]func(*world, *slot, schedule.Fault) error {
	return map[schedule.Kind]func(*world, *slot, schedule.Fault) error{
		schedule.CallsLossy:         (*world).loseCalls,
		schedule.EtcdLossy:          (*world).loseEtcd,
		schedule.KubeLossy:          (*world).loseKube,
		schedule.BackendsFrozen:     (*world).freezeAll,
		schedule.CertificateRenewed: (*world).renewCertificates,
		schedule.AuthorityRotated:   (*world).rotateAuthority,
		schedule.CertificateExpired: (*world).expireCertificate,
		schedule.RollingUpdate:      (*world).rollOut,
		schedule.SlowWatchers:       (*world).watchSlowly,
		schedule.DiskFull:           (*world).fillDisk,
		schedule.StreamChurn:        (*world).churnStreams,
		schedule.RepairInterrupted:  (*world).interruptRepair,
		schedule.ClockAhead:         stepClocks(time.Hour),
		schedule.ClockBack:          stepClocks(-time.Hour),
	}
}

// loss is a bad wireless link: a tenth of the packets is lost.
func loss() faultproxy.Loss {
	return faultproxy.Loss{
		Delay: 200 * time.Millisecond, Jitter: 100 * time.Millisecond, Share: 0.1, Least: 200 * time.Millisecond, Most: time.Second,
	}
}

func TestLoss_TheTableSaysHowLateRequestsMayBe(t *testing.T) {
	for _, entry := range schedule.Table() {
		if l := loss(); entry.Kind == schedule.KubeLossy && entry.Late != l.Delay+l.Jitter+l.Most {
			t.Errorf("the table says %v, and packets are late by up to %v", entry.Late, l.Delay+l.Jitter+l.Most)
		}
	}
}

// lossy is a link that can lose packets.
type lossy interface {
	Lose(faultproxy.Loss) (stop func())
}

func lose(duration time.Duration, links ...lossy) {
	for _, link := range links {
		defer link.Lose(loss())()
	}
	testkit.Pause(context.Background(), duration)
}

func (w *world) loseCalls(target *slot, f schedule.Fault) error {
	lose(f.Duration, target.Calls)
	return nil
}

func (w *world) loseEtcd(target *slot, f schedule.Fault) error {
	var links []lossy
	for _, link := range target.ToEtcd {
		links = append(links, link)
	}
	lose(f.Duration, links...)
	return nil
}

// loseKube disturbs all replicas, as do the other faults of requests to kube-apiserver.
func (w *world) loseKube(_ *slot, f schedule.Fault) error {
	var links []lossy
	for _, s := range w.replicasOf(f.Service) {
		links = append(links, s.KubeLink)
	}
	lose(f.Duration, links...)
	return nil
}

func (w *world) replicasOf(service string) []*slot {
	var of []*slot
	for _, s := range w.slots {
		if s.Service == service {
			of = append(of, s)
		}
	}
	return of
}

// stepClocks steps the clocks of the kubelets.
func stepClocks(step time.Duration) func(*world, *slot, schedule.Fault) error {
	return func(w *world, _ *slot, f schedule.Fault) error {
		w.nodes.clockStep.Add(int64(step))
		defer w.nodes.clockStep.Add(-int64(step))
		testkit.Pause(context.Background(), f.Duration)
		return nil
	}
}

// freezeAll leaves the gateway without an answer of a whole service.
func (w *world) freezeAll(_ *slot, f schedule.Fault) error {
	for _, s := range w.replicasOf(f.Service) {
		if err := s.signal((*childprocess.Child).Freeze); err != nil {
			return err
		}
		defer func() { _ = s.signal((*childprocess.Child).Thaw) }()
		w.down(s, f.Duration)
	}
	testkit.Pause(context.Background(), f.Duration)
	return nil
}
