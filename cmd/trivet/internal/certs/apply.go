package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/cli/exit"
)

const (
	// authoritySecret has the key of the authority and the state of its rotation; trustConfigMap
	// has the authorities that all peers trust.
	authoritySecret = "trivet-ca"
	trustConfigMap  = "trivet-ca"
	// trustKey has Trivet's authorities. clientTrustKey has also those of other clients.
	trustKey       = "ca.crt"
	clientTrustKey = "client-ca.crt"

	managedBy    = "app.kubernetes.io/managed-by"
	managedValue = "trivet-certs"
	// attempts is how often a run is repeated that another run overtook.
	attempts = 5
)

// change is one line of the answer.
type change struct{ object, what string }

func (c change) String() string { return c.object + " " + c.what }

// run is one run of apply.
type run struct {
	settings
	objects objects
	now     time.Time
	report  func(change)
	stored  bool                // whether the authorities were stored
	inUse   []*x509.Certificate // that the servers have after the run
}

// applyRepeatedly applies once more if another run has changed an object in between.
func applyRepeatedly(ctx context.Context, objects objects, s settings, now func() time.Time, report func(change)) error {
	return repeatedly(ctx, objects, s, now, report, (*run).apply)
}

func repeatedly(
	ctx context.Context, objects objects, s settings, now func() time.Time, report func(change), do func(*run, context.Context) error,
) error {
	var err error
	for range attempts {
		r := &run{settings: s, objects: objects, now: now(), report: report}
		if err = do(r, ctx); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
		s.policy.Rotate = s.policy.Rotate && !r.stored
	}
	if _, coded := errors.AsType[*exit.Error](err); err == nil || coded {
		return err
	}
	code := exit.Undetermined
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		code = exit.Findings
	}
	return &exit.Error{Code: code, Summary: "cannot write the certificates", Err: err}
}

// apply stores the authorities before any certificate of them is written, the bundle before the
// certificates, and that everything was written at the end.
func (r *run) apply(ctx context.Context) error {
	secret, err := r.objects.secret(ctx, authoritySecret)
	if err != nil {
		return err
	}
	before, err := r.authorities(ctx, secret)
	if err != nil {
		return err
	}
	next, changes, err := before.Advance(r.policy, r.now)
	if err != nil {
		return &exit.Error{Code: exit.Findings, Summary: "Secret " + r.namespace + "/" + authoritySecret, Err: err}
	}
	for _, what := range changes {
		r.report(change{object: "secret/" + authoritySecret, what: what})
	}
	if !next.Equal(before) || secret == nil {
		if secret, err = r.store(ctx, secret, next); err != nil {
			return err
		}
		r.stored = true
	}
	if err := r.applyObjects(ctx, next); err != nil {
		return err
	}
	if confirmed := next.Confirm(r.inUse, r.now); !confirmed.Equal(next) {
		_, err = r.store(ctx, secret, confirmed)
	}
	return err
}

// applyObjects goes on after the failure of one object. A conflict ends the run, which is repeated.
func (r *run) applyObjects(ctx context.Context, authorities certs.Authorities) error {
	problems := []error{r.applyTrust(ctx, authorities.Bundle())}
	for _, leaf := range r.leaves {
		problems = append(problems, r.applyLeaf(ctx, leaf, authorities, authorities.Bundle()))
	}
	for _, leaf := range r.etcdClients {
		switch {
		case r.etcd != nil:
			problems = append(problems, r.applyLeaf(ctx, leaf, certs.Authorities{Signing: r.etcd}, r.etcd.CertPEM()))
		case !r.signs(leaf.secret):
			problems = append(problems, r.reportWorn(ctx, leaf.secret))
		}
	}
	return errors.Join(problems...)
}

// signs reports whether Trivet's authority signs the certificate of a Secret.
func (r *run) signs(secret string) bool {
	return slices.ContainsFunc(r.leaves, func(l leaf) bool { return l.secret == secret })
}

// reportWorn says which flags renew a certificate of etcd's authority that wears out; one that has
// expired is an error. Without the key of that authority no certificate is made.
func (r *run) reportWorn(ctx context.Context, name string) error {
	secret, err := r.objects.secret(ctx, name)
	if apierrors.IsForbidden(err) {
		return nil // the account of the Job has no right to keys for etcd
	}
	if err != nil || secret == nil {
		return err
	}
	chain, err := certs.ParseCertificates(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return nil // it may be for another use
	}
	remedy := "give --etcd-ca-cert and --etcd-ca-key, the authority of etcd's clients"
	if r.owned(secret, "Secret") != nil {
		remedy = fmt.Sprintf("renew it as it was made; or set its label %s=%s and %s", managedBy, managedValue, remedy)
	}
	state, wrong := stateOf(chain[0], true, r.now)
	if !wrong {
		return nil
	}
	end := chain[0].NotAfter.UTC().Format(time.RFC3339)
	r.report(change{object: "secret/" + name, what: fmt.Sprintf("%s, it ends at %s: %s", state, end, remedy)})
	if r.now.Before(chain[0].NotAfter) {
		return nil
	}
	return &exit.Error{Code: exit.Findings, Err: fmt.Errorf("the certificate of Secret %s/%s expired at %s", r.namespace, name, end), Try: remedy}
}

// authorities returns those of the Secret, or of the certificates that are left without it.
func (r *run) authorities(ctx context.Context, secret *corev1.Secret) (certs.Authorities, error) {
	if secret != nil {
		if err := r.owned(secret, "Secret"); err != nil {
			return certs.Authorities{}, err
		}
		authorities, err := certs.Decode(secret.Data)
		if err != nil {
			return authorities, &exit.Error{
				Code: exit.Findings, Summary: "cannot read Secret " + r.namespace + "/" + authoritySecret, Err: err,
				Try: "restore the Secret, or delete it: the certificates in use stay trusted while a new authority takes over",
			}
		}
		return authorities, nil
	}
	for _, leaf := range r.leaves {
		left, err := r.objects.secret(ctx, leaf.secret)
		if err != nil {
			return certs.Authorities{}, err
		}
		if left == nil || r.owned(left, "Secret") != nil {
			continue
		}
		recovered, err := certs.Recover(left.Data[trustKey])
		if err != nil {
			continue // its certificate is replaced
		}
		r.report(change{object: "secret/" + authoritySecret, what: "is lost; a new authority takes over after the overlap"})
		r.policy.Rotate = r.policy.Given == nil
		return recovered, nil
	}
	return certs.Authorities{}, nil
}

// store writes the authorities and returns the Secret as it is stored now.
func (r *run) store(ctx context.Context, secret *corev1.Secret, authorities certs.Authorities) (*corev1.Secret, error) {
	data, err := authorities.Encode(r.policy.Given)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		secret = &corev1.Secret{ObjectMeta: r.meta(authoritySecret), Type: corev1.SecretTypeOpaque}
	}
	secret = secret.DeepCopy()
	secret.Data = data
	return r.objects.writeSecret(ctx, secret)
}

// applyTrust writes the ConfigMap with Trivet's authorities and those of other clients.
func (r *run) applyTrust(ctx context.Context, bundle []byte) error {
	name := "configmap/" + trustConfigMap
	existing, err := r.objects.configMap(ctx, trustConfigMap)
	if err != nil {
		return err
	}
	if existing != nil {
		if err := r.owned(existing, "ConfigMap"); err != nil {
			return err
		}
	}
	bundles := append([][]byte{bundle}, r.clientCAs...)
	if r.includeClusterClientCA {
		cluster, err := r.objects.clusterClientCA(ctx)
		if err != nil {
			return fmt.Errorf("read the authorities of the cluster's clients: %w", err)
		}
		bundles = append(bundles, cluster)
	}
	clients, err := certs.Merge(bundles...)
	if err != nil {
		return fmt.Errorf("authorities of clients: %w", err)
	}
	data := map[string]string{trustKey: string(bundle), clientTrustKey: string(clients)}
	switch {
	case existing == nil:
		err = r.objects.writeConfigMap(ctx, &corev1.ConfigMap{ObjectMeta: r.meta(trustConfigMap), Data: data})
		return r.reported(err, change{object: name, what: "created"})
	case maps.Equal(existing.Data, data):
		r.report(change{object: name, what: "unchanged"})
		return nil
	default:
		changed := existing.DeepCopy()
		changed.Data = data
		return r.reported(r.objects.writeConfigMap(ctx, changed), change{object: name, what: "updated: the authorities have changed"})
	}
}

func (r *run) applyLeaf(ctx context.Context, leaf leaf, authorities certs.Authorities, bundle []byte) error {
	authority := authorities.Signing
	name := "secret/" + leaf.secret
	secret, err := r.objects.secret(ctx, leaf.secret)
	if err != nil {
		return err
	}
	what := "updated"
	if secret == nil {
		what = "created"
		secret = &corev1.Secret{ObjectMeta: r.meta(leaf.secret), Type: corev1.SecretTypeTLS}
	} else if err := r.owned(secret, "Secret"); err != nil {
		return err
	}
	secret = secret.DeepCopy()
	pair := certs.KeyPair{CertPEM: secret.Data[corev1.TLSCertKey], KeyPEM: secret.Data[corev1.TLSPrivateKeyKey]}
	reason := authority.RenewReason(pair, leaf.Leaf, r.policy, r.now)
	if reason != "" && !authority.CanSign() {
		if authorities.Next == nil {
			return &exit.Error{Code: exit.Findings, Summary: name + ": " + reason, Err: certs.ErrNoKey}
		}
		r.report(change{object: name, what: "waits for the next authority: " + reason})
		reason = ""
	}
	if reason != "" {
		if pair, err = authority.Issue(leaf.Leaf, r.policy.LeafLifetime, r.now); err != nil {
			return err
		}
	}
	if chain, err := certs.ParseCertificates(pair.CertPEM); err == nil {
		r.inUse = append(r.inUse, chain[0])
	}
	if reason == "" && bytes.Equal(secret.Data[trustKey], bundle) {
		r.report(change{object: name, what: "unchanged"})
		return nil
	}
	if reason == "" {
		reason = "the authorities have changed"
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[trustKey] = pair.CertPEM, pair.KeyPEM, bundle
	_, err = r.objects.writeSecret(ctx, secret)
	return r.reported(err, change{object: name, what: what + ": " + reason})
}

func (r *run) reported(err error, done change) error {
	if err == nil {
		r.report(done)
	}
	return err
}

// owned fails for an object that another program made.
func (r *run) owned(object metav1.Object, kind string) error {
	if object.GetLabels()[managedBy] == managedValue {
		return nil
	}
	return &exit.Error{
		Code: exit.Findings,
		Err: fmt.Errorf("%s %s/%s exists and was not made by trivet certs: label %s is %q, not %q",
			kind, r.namespace, object.GetName(), managedBy, object.GetLabels()[managedBy], managedValue),
		Try: fmt.Sprintf("keep it and leave its server out of --servers, or delete it, or set the label %s=%s", managedBy, managedValue),
	}
}

func (r *run) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: r.namespace,
		Labels: map[string]string{managedBy: managedValue, "app.kubernetes.io/part-of": "trivet"},
	}
}
