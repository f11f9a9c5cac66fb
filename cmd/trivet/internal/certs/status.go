package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	"github.com/trivet-dev/trivet/internal/certs"
)

// showStatus prints what exists, and what a run of apply would do to a copy of it.
func showStatus(ctx context.Context, streams printer.Streams, from objects, s settings, now time.Time) error {
	copied, err := copyOf(ctx, from, s)
	if err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot read the certificates", Err: err}
	}
	table := &printer.Table{Width: streams.Width()}
	table.AddStyled(printer.Bold, "CERTIFICATE", "STATE", "EXPIRES", "RENEWED FROM")
	wrong := copied.addAuthorities(table, now)
	for _, leaf := range s.leaves {
		wrong += addCertificate(table, leaf.secret, copied.secrets[leaf.secret], now)
	}
	wrong += addCertificate(table, etcdSecret, copied.secrets[etcdSecret], now)
	if _, err := table.WriteTo(streams.Out); err != nil {
		return &exit.Error{Code: exit.Undetermined, Summary: "cannot print the certificates", Err: err}
	}
	pending := 0
	err = applyRepeatedly(ctx, copied, s, func() time.Time { return now }, func(change change) {
		if change.what != "unchanged" {
			pending++
			fmt.Fprintln(streams.Out, "next run:", change)
		}
	})
	switch {
	case err != nil:
		return err
	case wrong > 0:
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(wrong, "certificate") + " missing, expired or not renewed in time", Try: "trivet certs apply"}
	case pending == 0:
		fmt.Fprintln(streams.Out, "next run: nothing to do")
	}
	return nil
}

// copyOf reads everything that apply reads.
func copyOf(ctx context.Context, from objects, s settings) (*memory, error) {
	copied := newMemory(s.namespace)
	names := []string{authoritySecret, etcdSecret}
	for _, leaf := range s.leaves {
		names = append(names, leaf.secret)
	}
	for _, name := range names {
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

// addAuthorities adds a row for each authority of the Secret, and returns how many are wrong.
func (m *memory) addAuthorities(table *printer.Table, now time.Time) (wrong int) {
	secret := m.secrets[authoritySecret]
	if secret == nil {
		return addCertificate(table, authoritySecret, nil, now)
	}
	authorities, err := certs.Decode(secret.Data)
	if err != nil {
		table.AddStyled(printer.Failure, authoritySecret, "cannot be read: "+err.Error())
		return 1
	}
	add := func(authority *certs.Authority, role string) {
		table.AddStyled(printer.Normal, "authority "+authority.Fingerprint(), role,
			date(authority.Certificate().NotAfter), date(certs.RenewAt(authority.Certificate())))
	}
	add(authorities.Signing, "signs")
	if authorities.Next != nil {
		role := "not yet trusted everywhere"
		if !authorities.NextTrusted.IsZero() {
			role = "trusted since " + date(authorities.NextTrusted)
		}
		add(authorities.Next, role)
	}
	for _, former := range authorities.Former {
		role := "signed certificates in use"
		if !former.Unused.IsZero() {
			role = "unused since " + date(former.Unused)
		}
		add(former.Authority, role)
	}
	return 0
}

// addCertificate adds the row of a Secret, and returns 1 if its certificate is wrong. The
// certificate for etcd may come from elsewhere, and then only its end counts.
func addCertificate(table *printer.Table, name string, secret *corev1.Secret, now time.Time) (wrong int) {
	if secret == nil {
		table.AddStyled(printer.Failure, name, "missing")
		return 1
	}
	chain, err := certs.ParseCertificates(secret.Data[corev1.TLSCertKey])
	if err != nil {
		table.AddStyled(printer.Failure, name, "cannot be read: "+err.Error())
		return 1
	}
	ours := secret.Labels[managedBy] == managedValue
	state, style := stateOf(chain[0], ours, now)
	table.AddStyled(style, name, state, date(chain[0].NotAfter), date(certs.RenewAt(chain[0])))
	if style == printer.Failure {
		return 1
	}
	return 0
}

func stateOf(certificate *x509.Certificate, ours bool, now time.Time) (string, printer.Style) {
	switch {
	case now.After(certificate.NotAfter):
		return "expired", printer.Failure
	case now.After(certs.RenewAt(certificate)):
		return "to be renewed", printer.Failure
	case !ours:
		return "valid, made elsewhere", printer.Normal
	default:
		return "valid", printer.Normal
	}
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }
