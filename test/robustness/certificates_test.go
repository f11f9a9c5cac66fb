package robustness

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/certs"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// connectionAge is the age at which a replica asks a connection to go, so that handshakes never
// end. From then on gRPC sends no pings, so it is longer than slow watches need to be dropped.
const connectionAge = time.Minute

// administrator calls for the test.
const administrator = "administrator"

// dialAsAdministrator returns a connection of the test itself to a server.
func (w *world) dialAsAdministrator(target, service string) (*grpc.ClientConn, error) {
	return w.pki.Dial(target, service, administrator, administratorLeaf())
}

func administratorLeaf() certs.Leaf { return certs.ClientLeaf(administrator, "system:masters") }

// renewCertificates replaces all certificates. Streams that are open go on, and new connections
// succeed at each moment.
func (w *world) renewCertificates(_ *slot, f schedule.Fault) error {
	streams, err := w.holdStreams()
	if err != nil {
		return err
	}
	defer streams.end()
	testkit.Pause(context.Background(), f.Duration/4)
	if err := w.pki.RenewAll(); err != nil {
		return err
	}
	testkit.Pause(context.Background(), 3*f.Duration/4)
	return nil
}

// rotateAuthority changes the authority with an overlap, as `trivet certs` does. Each step lasts
// longer than the second after which a process reads its files again.
func (w *world) rotateAuthority(_ *slot, f schedule.Fault) error {
	streams, err := w.holdStreams()
	if err != nil {
		return err
	}
	defer streams.end()
	next, err := certs.NewAuthority("robustness", certs.LeafLifetime, time.Now())
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return w.pki.TrustAll(append(w.pki.Trusts(), next)...) },
		func() error { w.pki.SignBy(next); return w.pki.RenewAll() },
		func() error { return w.pki.TrustAll(next) },
	} {
		if err := step(); err != nil {
			return err
		}
		testkit.Pause(context.Background(), f.Duration/3)
	}
	return nil
}

const (
	// expired is the age of the end of an expired certificate.
	expired = -time.Minute
	// lateClient is a client that does not renew its certificate.
	lateClient = "late-client"
	// reread is longer than a process needs to read a renewed certificate.
	reread = 5 * time.Second
)

// expireCertificate lets the certificate of one replica expire, and closes its connections. Nothing
// trusts the replica, the replica trusts no client whose certificate has expired, and a renewal is
// enough for both.
func (w *world) expireCertificate(target *slot, f schedule.Fault) error {
	process := target.ProcessName()
	if err := w.pki.SetLifetime(target.Name, expired); err != nil {
		return err
	}
	defer func() { _ = w.pki.SetLifetime(target.Name, certs.LeafLifetime) }() // again; the renewal below reports its failure
	if _, err := w.pki.Files(lateClient, certs.ClientLeaf(lateClient, "system:masters")); err != nil {
		return err
	}
	if err := w.pki.SetLifetime(lateClient, expired); err != nil {
		return err
	}
	target.Calls.Disconnect(true)
	target.Calls.Disconnect(false)
	testkit.Pause(context.Background(), f.Duration/2) // The replica has read the file by then.

	accepted := 0.0
	for range 3 {
		for _, client := range []string{administrator, lateClient} {
			if err := w.callOnce(target, client); err == nil {
				accepted++
			}
		}
	}
	if !w.disturbed(target, process) {
		w.level(target, "calls to a replica whose certificate has expired, accepted", accepted, 0, 0)
	}
	if err := w.checkFailures(target, process, "refused_by_peer"); err != nil {
		return err
	}
	testkit.Pause(context.Background(), f.Duration/2)
	if err := w.pki.SetLifetime(target.Name, certs.LeafLifetime); err != nil {
		return err
	}
	return w.checkLateClient(target, process)
}

// checkLateClient measures how calls succeed after a renewal, and that a client with an expired
// certificate is refused until its own is renewed.
func (w *world) checkLateClient(target *slot, process string) error {
	renewed := time.Now()
	for time.Since(renewed) < 2*reread && w.callOnce(target, administrator) != nil {
		testkit.Pause(context.Background(), 100*time.Millisecond)
	}
	if !w.disturbed(target, process) {
		w.level(target, "seconds until calls succeed after the renewal", time.Since(renewed).Seconds(), 0, reread.Seconds())
	}
	accepted := 0.0
	for range 3 {
		if w.callOnce(target, lateClient) == nil {
			accepted++
		}
	}
	if !w.disturbed(target, process) {
		w.level(target, "calls of a client whose certificate has expired, accepted", accepted, 0, 0)
	}
	if err := w.checkFailures(target, process, "expired"); err != nil {
		return err
	}
	if err := w.pki.SetLifetime(lateClient, certs.LeafLifetime); err != nil {
		return err
	}
	if err := w.callOnce(target, lateClient); !w.disturbed(target, process) {
		w.level(target, fmt.Sprintf("calls of the client with a renewed certificate, refused (%v)", err), oneIf(err != nil), 0, 0)
	}
	return nil
}

// checkFailures measures that a replica counts failed handshakes of a reason.
func (w *world) checkFailures(target *slot, process, reason string) error {
	failed, err := w.metric(context.Background(), target, "trivet_tls_handshakes_failed_total", fmt.Sprintf("reason=%q", reason))
	if err != nil || w.disturbed(target, process) {
		return w.unlessDisturbed(target, process, err)
	}
	w.level(target, "failed handshakes that it counts, reason "+reason, failed, 1, unlimited)
	return nil
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

// callOnce calls a replica behind its proxies over a new connection. Each replica has the method.
func (w *world) callOnce(target *slot, client string) error {
	conn, err := w.pki.Dial(target.GRPC, target.Service, client, certs.ClientLeaf(client, "system:masters"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err = statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	return err
}
