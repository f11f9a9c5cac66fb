package certs

import (
	"context"
	"crypto/x509"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// status is the answer of `trivet certs status`.
type status struct {
	Certificates []row `json:"certificates"`
	// NextRun has what the next run of apply would do; empty if nothing.
	NextRun []string `json:"nextRun"`
}

// row is an authority or a certificate.
type row struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// ExpireTime and RenewTime are nil without a certificate.
	ExpireTime *time.Time `json:"expireTime"`
	RenewTime  *time.Time `json:"renewTime"`
	// Wrong says that it is missing, has expired, or should have been renewed.
	Wrong bool `json:"wrong"`
}

// showStatus prints what exists, and what a run of apply would do to a copy of it.
func showStatus(ctx context.Context, flags *client.OutputFlags, from objects, s settings, now time.Time) error {
	copied, err := copyOf(ctx, from, s)
	if err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot read the certificates", Err: err}
	}
	found := status{Certificates: copied.authorities(now), NextRun: []string{}}
	for _, secret := range s.secrets() {
		found.Certificates = append(found.Certificates, rowOf(secret, copied.secrets[secret], now))
	}
	planned := applyRepeatedly(ctx, copied, s, func() time.Time { return now }, func(change change) {
		if change.what != "unchanged" {
			found.NextRun = append(found.NextRun, change.String())
		}
	})
	if err := flags.Print(found, func() error { return found.print(flags, now) }); err != nil {
		return client.CannotPrint("certificates", err)
	}
	wrong := 0
	for _, row := range found.Certificates {
		if row.Wrong {
			wrong++
		}
	}
	switch {
	case planned != nil:
		return planned
	case wrong > 0:
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(wrong, "certificate") + " missing, expired or not renewed in time", Try: "trivet certs apply"}
	default:
		return nil
	}
}

func (s status) print(flags *client.OutputFlags, now time.Time) error {
	if flags.Output == "name" {
		for _, row := range s.Certificates {
			if err := flags.PrintLine(row.Name); err != nil {
				return err
			}
		}
		return nil
	}
	table := flags.NewTable("CERTIFICATE", "STATE", "EXPIRES", "RENEWED FROM")
	for _, row := range s.Certificates {
		style := printer.Normal
		if row.Wrong {
			style = printer.Failure
		}
		table.AddStyled(style, row.Name, row.State, moment(now, row.ExpireTime), moment(now, row.RenewTime))
	}
	if err := flags.WriteTable(table); err != nil {
		return err
	}
	next := s.NextRun
	if len(next) == 0 {
		next = []string{"nothing to do"}
	}
	for _, change := range next {
		if err := flags.PrintLine("next run: " + change); err != nil {
			return err
		}
	}
	return nil
}

// copyOf reads everything that apply reads.
func copyOf(ctx context.Context, from objects, s settings) (*memory, error) {
	copied := newMemory(s.namespace)
	for _, name := range append(s.secrets(), authoritySecret) {
		secret, err := from.secret(ctx, name)
		if err != nil {
			return nil, err
		}
		if secret != nil {
			copied.secrets[name] = secret
		}
	}
	configMap, err := from.configMap(ctx, trustConfigMap)
	if err != nil {
		return nil, err
	}
	if configMap != nil {
		copied.configMaps[trustConfigMap] = configMap
	}
	if s.includeClusterClientCA {
		copied.clientCA, err = from.clusterClientCA(ctx)
	}
	return copied, err
}

// authorities returns a row for each authority of the Secret.
func (m *memory) authorities(now time.Time) []row {
	secret := m.secrets[authoritySecret]
	if secret == nil {
		return []row{rowOf(authoritySecret, nil, now)}
	}
	authorities, err := certs.Decode(secret.Data)
	if err != nil {
		return []row{{Name: authoritySecret, State: "cannot be read: " + err.Error(), Wrong: true}}
	}
	var rows []row
	add := func(authority *certs.Authority, role string) {
		row := row{Name: "authority " + authority.Fingerprint(), State: role}
		row.setTimes(authority.Certificate())
		rows = append(rows, row)
	}
	add(authorities.Signing, "signs")
	if authorities.Next != nil {
		role := "not yet trusted everywhere"
		if !authorities.NextTrusted.IsZero() {
			role = "trusted since " + authorities.NextTrusted.UTC().Format(time.RFC3339)
		}
		add(authorities.Next, role)
	}
	for _, former := range authorities.Former {
		role := "signed certificates in use"
		if !former.Unused.IsZero() {
			role = "unused since " + former.Unused.UTC().Format(time.RFC3339)
		}
		add(former.Authority, role)
	}
	return rows
}

// rowOf returns the row of a Secret. The certificate for etcd may come from elsewhere, and then
// only its end counts.
func rowOf(name string, secret *corev1.Secret, now time.Time) row {
	if secret == nil {
		return row{Name: name, State: "missing", Wrong: true}
	}
	chain, err := certs.ParseCertificates(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return row{Name: name, State: "cannot be read: " + err.Error(), Wrong: true}
	}
	row := row{Name: name}
	row.setTimes(chain[0])
	ours := secret.Labels[managedBy] == managedValue
	row.State, row.Wrong = stateOf(chain[0], ours, now)
	return row
}

func (r *row) setTimes(certificate *x509.Certificate) {
	expire, renew := certificate.NotAfter.UTC(), certs.RenewAt(certificate).UTC()
	r.ExpireTime, r.RenewTime = &expire, &renew
}

func stateOf(certificate *x509.Certificate, ours bool, now time.Time) (state string, wrong bool) {
	switch {
	case now.After(certificate.NotAfter):
		return "expired", true
	case now.After(certs.RenewAt(certificate)):
		return "to be renewed", true
	case !ours:
		return "valid, made elsewhere", false
	default:
		return "valid", false
	}
}

// moment returns a time with its distance from now: "2026-01-02T03:04:05Z (in 5m0s)"; empty for
// nil.
func moment(now time.Time, t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339) + " (" + printer.Until(t.Sub(now)) + ")"
}
