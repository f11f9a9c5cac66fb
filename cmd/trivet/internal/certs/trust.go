package certs

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

func newTrustCommand(streams printer.Streams) *cobra.Command {
	opts := defaults()
	command := &cobra.Command{
		Use:   "trust",
		Short: "Write only the ConfigMap, for certificates that cert-manager or another program makes",
		Long: `Write ConfigMap trivet-ca from the key ca.crt of the servers' Secrets, which cert-manager or another program
makes. An authority that is in the ConfigMap stays until it expires, so that certificates of before and after a change
are trusted. To remove an authority sooner, delete the ConfigMap and run this again.

Exit codes:
  0   The ConfigMap is as it must be.
  1   A Secret has no authority, or the ConfigMap could not be written.
  2   The cluster gave no answer.
  64  The command line is wrong.`,
		Example: `  trivet certs trust --include-cluster-client-ca`,
		RunE:    changing(&opts, streams, (*run).trust),
	}
	opts.registerTrust(command.Flags())
	opts.registerCluster(command.Flags())
	command.Flags().BoolVar(&opts.dryRun, "dry-run", false, "Check everything at the server and change nothing.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

// trust writes the authorities of the Secrets. Until every Secret has one, it writes nothing.
func (r *run) trust(ctx context.Context) error {
	trusted, err := r.trustedNow(ctx)
	if err != nil {
		return err
	}
	bundles := [][]byte{trusted}
	var problems []error
	for _, leaf := range r.leaves {
		secret, err := r.objects.secret(ctx, leaf.secret)
		if err != nil {
			return err
		}
		var bundle []byte
		if secret != nil {
			bundle = secret.Data[trustKey]
		}
		if _, err := certs.ParseCertificates(bundle); err != nil {
			problems = append(problems, fmt.Errorf("no authority in %s of Secret %s/%s: %w", trustKey, r.namespace, leaf.secret, err))
			continue
		}
		bundles = append(bundles, bundle)
	}
	if err := errors.Join(problems...); err != nil {
		return &exit.Error{Code: exit.Findings, Err: err}
	}
	if len(trusted) == 0 {
		bundles = bundles[1:]
	}
	bundle, err := certs.Merge(bundles...)
	if err != nil {
		return err
	}
	return r.applyTrust(ctx, bundle)
}

// trustedNow returns the authorities in the ConfigMap that have not expired.
func (r *run) trustedNow(ctx context.Context) ([]byte, error) {
	existing, err := r.objects.configMap(ctx, trustConfigMap)
	if err != nil || existing == nil || existing.Data[trustKey] == "" {
		return nil, err
	}
	bundle, err := certs.WithoutExpired([]byte(existing.Data[trustKey]), r.now)
	if err != nil {
		return nil, &exit.Error{
			Code: exit.Findings, Summary: fmt.Sprintf("cannot read %s of ConfigMap %s/%s", trustKey, r.namespace, trustConfigMap), Err: err,
			Try: "delete the ConfigMap",
		}
	}
	return bundle, nil
}
