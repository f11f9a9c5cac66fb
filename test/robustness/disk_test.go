package robustness

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/audit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

const (
	// partOfARecord is less than a record of the audit log, in bytes.
	partOfARecord = 100
	// recordsWhileFull and recordsAfter stay below the limit of records for one identity.
	recordsWhileFull, recordsAfter = 5, 3
)

// auditCount is what the audit log of a process counts, and what is in its file.
type auditCount struct {
	records, failed float64
	lines, broken   float64
}

// fillDisk keeps the files of one process from growing, and makes records meanwhile. The replica
// serves, each record is in the file or counted as lost, and no line is broken.
func (w *world) fillDisk(target *slot, f schedule.Fault) error {
	ctx := context.Background()
	process := target.ProcessName()
	before, err := w.auditOf(ctx, target)
	if err != nil {
		return w.unlessDisturbed(target, process, err)
	}
	info, err := os.Stat(target.audit)
	if err != nil {
		return err
	}
	pid := target.Process().PID()
	if err := limitFiles(pid, uint64(info.Size()+partOfARecord)); err != nil {
		return w.unlessDisturbed(target, process, err)
	}
	failed := 0.0
	for range recordsWhileFull {
		if err := w.makeRecord(target); err != nil {
			failed++
		}
		testkit.Pause(ctx, f.Duration/recordsWhileFull)
	}
	full, fullErr := w.auditOf(ctx, target)
	if err := unlimitFiles(pid); err != nil {
		return w.unlessDisturbed(target, process, err)
	}
	for range recordsAfter {
		if err := w.makeRecord(target); err != nil {
			failed++
		}
	}
	after, err := w.settledAudit(ctx, target, before)
	if err := errors.Join(fullErr, err); err != nil || w.disturbed(target, process) {
		return w.unlessDisturbed(target, process, err)
	}
	w.level(target, "calls that failed because of a full disk", failed, 0, 0)
	w.level(target, "records that it counts as lost while the disk is full", full.failed-before.failed, 1, unlimited)
	w.level(target, "records that were neither written nor counted as lost", after.unaccounted(before), 0, 0)
	w.level(target, "records written after it", after.lines-full.lines, recordsAfter, unlimited)
	w.level(target, "broken lines in the audit log", after.broken, 0, 0)
	return nil
}

// unaccounted returns how many records since before are neither in the file nor counted as lost.
func (a auditCount) unaccounted(before auditCount) float64 {
	return (a.records - before.records) - (a.lines - before.lines) - (a.failed - before.failed)
}

// settledAudit waits until the records that wait are written.
func (w *world) settledAudit(ctx context.Context, s *slot, before auditCount) (auditCount, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		counted, err := w.auditOf(ctx, s)
		if err != nil || counted.unaccounted(before) == 0 || ctx.Err() != nil {
			return counted, err
		}
		testkit.Pause(ctx, 100*time.Millisecond)
	}
}

// auditOf reads the counters of a process and then its file.
func (w *world) auditOf(ctx context.Context, s *slot) (counted auditCount, err error) {
	if counted.failed, err = w.metric(ctx, s, "trivet_audit_write_failures_total", ""); err != nil {
		return counted, err
	}
	for _, decision := range []audit.Decision{audit.Allowed, audit.Denied} { // Without a record, the metric has no series.
		of, err := w.metric(ctx, s, "trivet_audit_records_total", fmt.Sprintf("decision=%q", decision))
		if err != nil {
			return counted, err
		}
		counted.records += of
	}
	text, err := os.ReadFile(s.audit)
	if err != nil {
		return counted, err
	}
	for line := range bytes.Lines(text) {
		var record struct {
			Message string `json:"msg"`
		}
		switch err := json.Unmarshal(line, &record); {
		case err != nil:
			counted.broken++
		case record.Message == "audit": // Others tell of what was suppressed.
			counted.lines++
		}
	}
	return counted, nil
}

// makeRecord makes a call that has a record in the audit log: a change, or a denial.
func (w *world) makeRecord(s *slot) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if s.Service == history.Leasesvc {
		return w.callWithoutIdentity(ctx, s)
	}
	conn, err := w.dialAsAdministrator(s.GRPC, s.Service)
	if err != nil {
		return err
	}
	defer conn.Close()
	if s.Service == history.Bootstrapsvc {
		_, err = bootstrapv1.NewFindingServiceClient(conn).AuditAllocations(ctx, &bootstrapv1.AuditAllocationsRequest{})
	} else {
		_, err = slicev1.NewSliceServiceClient(conn).ReconcileServiceSlices(ctx, &slicev1.ReconcileServiceSlicesRequest{
			Name: "namespaces/" + namespace + "/serviceslices/app-000", ValidateOnly: true,
		})
	}
	if code := status.Code(err); code == codes.FailedPrecondition || code == codes.Aborted {
		return nil // Another replica leads, or another change was faster. Both have a record.
	}
	return err
}

// callWithoutIdentity is denied.
func (w *world) callWithoutIdentity(ctx context.Context, s *slot) error {
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	if status.Code(err) == codes.Unauthenticated {
		return nil
	}
	return err
}
