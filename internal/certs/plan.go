package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Policy is how an installation wants its certificates.
type Policy struct {
	// AuthorityLifetime and LeafLifetime are those of new certificates.
	AuthorityLifetime, LeafLifetime time.Duration
	// Overlap is how long an authority is trusted before it signs and after its last certificate
	// was replaced. It must exceed the time in which every process reads a changed bundle.
	Overlap time.Duration
	// Given is an authority that the user brings; nil makes one.
	Given *Authority
	// Rotate begins a change of the authority now, unless one is under way.
	Rotate bool
}

// Authorities are the authorities of an installation. The zero value has none. Values are not
// changed; each step returns a new one.
type Authorities struct {
	// Signing signs new certificates.
	Signing *Authority
	// Next is trusted and signs after the overlap; nil without a change under way.
	Next *Authority
	// NextTrusted is when every bundle was known to have Next; zero before.
	NextTrusted time.Time
	// Former signed before and stay trusted.
	Former []Former
}

// Former is an authority that signs no more.
type Former struct {
	Authority *Authority
	// Unused is when the last certificate of the authority was known to be replaced; zero before.
	Unused time.Time
}

// ErrNoKey says that a certificate is to be signed by an authority that the user brought before
// and does not bring now.
var ErrNoKey = errors.New("the key of the signing authority is not stored, because the authority was given; " +
	"give it again with --ca-cert and --ca-key, or replace it with --rotate-ca")

// Advance returns the authorities at a time, and what changed in words. Store the result before any
// certificate of it is written.
func (a Authorities) Advance(policy Policy, now time.Time) (next Authorities, changes []string, err error) {
	next = a
	next.Former = nil
	for _, former := range a.Former {
		end := former.Authority.Certificate().NotAfter
		if now.After(end) || !former.Unused.IsZero() && !now.Before(former.Unused.Add(policy.Overlap)) {
			changes = append(changes, fmt.Sprintf("authority %s is trusted no longer", former.Authority.Fingerprint()))
			continue
		}
		next.Former = append(next.Former, former)
	}
	if next.Signing == nil {
		next.Signing, err = policy.successor(now)
		if err != nil {
			return a, nil, err
		}
		return next, append(changes, fmt.Sprintf("authority %s signs", next.Signing.Fingerprint())), nil
	}
	changes, err = next.choose(policy, now, changes)
	if err != nil {
		return a, nil, err
	}
	return next, next.promote(policy, now, changes), nil
}

// choose sets the authority that comes next.
func (a *Authorities) choose(policy Policy, now time.Time, changes []string) ([]string, error) {
	before := a.Next
	switch {
	case policy.Given != nil && policy.Given.same(a.Signing):
		a.Signing, a.Next = policy.Given, nil
	case policy.Given != nil:
		a.Next = policy.Given
	case a.Next != nil:
	case policy.Rotate || a.Signing.CanSign() && wornOut(a.Signing.Certificate(), now):
		made, err := policy.successor(now)
		if err != nil {
			return nil, err
		}
		a.Next = made
	}
	if !a.Next.same(before) {
		a.NextTrusted = time.Time{}
		if a.Next != nil {
			changes = append(changes, fmt.Sprintf("authority %s is trusted, and signs after %v", a.Next.Fingerprint(), policy.Overlap))
		}
	}
	return changes, nil
}

// promote lets the next authority sign after the overlap, if its key is there. If the signing one
// has expired, nothing is left to overlap with.
func (a *Authorities) promote(policy Policy, now time.Time, changes []string) []string {
	if a.Next == nil || !a.Next.CanSign() {
		return changes
	}
	overlapped := !a.NextTrusted.IsZero() && !now.Before(a.NextTrusted.Add(policy.Overlap))
	if !overlapped && !now.After(a.Signing.Certificate().NotAfter) {
		return changes
	}
	// An authority that returns to sign is no former one.
	a.Former = slices.DeleteFunc(a.Former, func(f Former) bool { return f.Authority.same(a.Next) })
	a.Former = append(a.Former, Former{Authority: withoutKey(a.Signing)})
	a.Signing, a.Next, a.NextTrusted = a.Next, nil, time.Time{}
	return append(changes, fmt.Sprintf("authority %s signs", a.Signing.Fingerprint()))
}

// Confirm returns the authorities after every bundle and every certificate was written. inUse are
// the certificates that the servers have now.
func (a Authorities) Confirm(inUse []*x509.Certificate, now time.Time) Authorities {
	if a.Next != nil && a.NextTrusted.IsZero() {
		a.NextTrusted = now
	}
	a.Former = slices.Clone(a.Former)
	for i, former := range a.Former {
		if former.Unused.IsZero() && !slices.ContainsFunc(inUse, former.Authority.signed) {
			a.Former[i].Unused = now
		}
	}
	return a
}

// Bundle returns all trusted authorities as PEM, oldest first: a change of their roles alone leaves
// the text as it is.
func (a Authorities) Bundle() []byte {
	var all []*Authority
	for _, former := range a.Former {
		all = append(all, former.Authority)
	}
	for _, authority := range []*Authority{a.Signing, a.Next} {
		if authority != nil {
			all = append(all, authority)
		}
	}
	slices.SortStableFunc(all, func(x, y *Authority) int {
		return x.Certificate().NotBefore.Compare(y.Certificate().NotBefore)
	})
	return Bundle(all...)
}

// Equal reports whether both have the same authorities in the same roles.
func (a Authorities) Equal(b Authorities) bool {
	return a.Signing.same(b.Signing) && a.Next.same(b.Next) && a.NextTrusted.Equal(b.NextTrusted) &&
		slices.EqualFunc(a.Former, b.Former, func(x, y Former) bool {
			return x.Authority.same(y.Authority) && x.Unused.Equal(y.Unused)
		})
}

// successor returns the given authority, or a new one.
func (p Policy) successor(now time.Time) (*Authority, error) {
	if p.Given != nil {
		return p.Given, nil
	}
	// A name of its own lets programs tell authorities apart that compare only names.
	return NewAuthority("trivet "+now.UTC().Format("2006-01-02 15:04:05"), p.AuthorityLifetime, now)
}

// withoutKey forgets the key, so that it does not stay in memory and in the Secret.
func withoutKey(a *Authority) *Authority { return &Authority{chain: a.chain} }

// RenewReason returns why the certificate has to be replaced; empty if it need not be. pair is what
// a server has now.
func (a *Authority) RenewReason(pair KeyPair, leaf Leaf, policy Policy, now time.Time) string {
	if len(pair.CertPEM) == 0 {
		return "it is missing"
	}
	chain, err := ParseCertificates(pair.CertPEM)
	if err != nil {
		return "it cannot be read: " + err.Error()
	}
	certificate := chain[0]
	key, err := parseKey(pair.KeyPEM)
	if err != nil {
		return "its key cannot be read: " + err.Error()
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	switch {
	case err != nil || !bytes.Equal(public, certificate.RawSubjectPublicKeyInfo):
		return "its key is that of another certificate"
	case !leaf.describes(certificate):
		return "its names or groups differ from what is needed"
	case !a.signed(certificate):
		return "another authority signed it"
	case wornOut(certificate, now) && earlier(now.Add(policy.LeafLifetime), a.Certificate().NotAfter).After(certificate.NotAfter):
		return "it expires at " + certificate.NotAfter.UTC().Format(time.RFC3339)
	}
	return ""
}

// RenewAt returns when less than a third of the life of a certificate is left.
func RenewAt(certificate *x509.Certificate) time.Time {
	return certificate.NotAfter.Add(-certificate.NotAfter.Sub(certificate.NotBefore) / 3)
}

func wornOut(certificate *x509.Certificate, now time.Time) bool {
	return !now.Before(RenewAt(certificate))
}

// Recover returns the authorities of an installation that has lost the Secret of its authorities:
// those of a bundle stay trusted and cannot sign. The next [Authorities.Advance] needs
// [Policy.Rotate] or [Policy.Given].
func Recover(bundle []byte) (Authorities, error) {
	certificates, err := ParseCertificates(bundle)
	if err != nil {
		return Authorities{}, err
	}
	a := Authorities{Signing: &Authority{chain: certificates[:1]}}
	for _, certificate := range certificates[1:] {
		a.Former = append(a.Former, Former{Authority: &Authority{chain: []*x509.Certificate{certificate}}})
	}
	return a, nil
}
