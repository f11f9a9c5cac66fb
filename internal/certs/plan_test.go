package certs_test

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
)

const (
	overlap = time.Hour
	day     = 24 * time.Hour
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func policy() certs.Policy {
	return certs.Policy{AuthorityLifetime: certs.AuthorityLifetime, LeafLifetime: certs.LeafLifetime, Overlap: overlap}
}

// installation has what the Secrets would have.
type installation struct {
	authorities certs.Authorities
	pair        certs.KeyPair
	leaf        certs.Leaf
}

// run does what `trivet certs apply` does at a time, through the form in which it is stored, and
// reports whether it changed anything.
func (i *installation) run(t *testing.T, p certs.Policy, now time.Time) (changed bool) {
	t.Helper()
	if i.authorities.Signing != nil {
		i.authorities = stored(t, i.authorities, p.Given)
	}
	next, _, err := i.authorities.Advance(p, now)
	if err != nil {
		t.Fatal(err)
	}
	changed = !next.Equal(i.authorities)
	i.authorities = next
	if next.Signing.CanSign() && next.Signing.RenewReason(i.pair, i.leaf, p, now) != "" {
		if i.pair, err = next.Signing.Issue(i.leaf, p.LeafLifetime, now); err != nil {
			t.Fatal(err)
		}
		changed = true
	}
	confirmed := next.Confirm([]*x509.Certificate{i.certificate(t)}, now)
	changed = changed || !confirmed.Equal(next)
	i.authorities = confirmed
	return changed
}

func stored(t *testing.T, a certs.Authorities, given *certs.Authority) certs.Authorities {
	t.Helper()
	data, err := a.Encode(given)
	if err != nil {
		t.Fatal(err)
	}
	read, err := certs.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if !read.Equal(a) {
		t.Fatalf("Decode(Encode(a)) differs from a: %s", data["rotation.json"])
	}
	return read
}

func (i *installation) certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	chain, err := certs.ParseCertificates(i.pair.CertPEM)
	if err != nil {
		t.Fatal(err)
	}
	return chain[0]
}

// verified reports whether a peer with this bundle accepts the certificate.
func verified(t *testing.T, bundle []byte, certificate *x509.Certificate, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: "leasesvc", CurrentTime: now})
	return err
}

func install(t *testing.T) *installation {
	t.Helper()
	i := &installation{leaf: certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local")}
	i.run(t, policy(), start)
	return i
}

func TestAdvance_SecondRunChangesNothing(t *testing.T) {
	i := install(t)
	for _, after := range []time.Duration{0, time.Minute, 30 * day, 200 * day} {
		if i.run(t, policy(), start.Add(after)) {
			t.Errorf("a run after %v changed something", after)
		}
	}
	if !i.run(t, policy(), start.Add(250*day)) {
		t.Error("a certificate with less than a third of its life left was not renewed")
	}
	if i.run(t, policy(), start.Add(250*day+time.Minute)) {
		t.Error("the renewed certificate was renewed again")
	}
}

// At no time may a peer that read its files at any moment of the overlap refuse a certificate of a
// server that read its files at any other moment of it.
func TestAdvance_EveryPairOfVersionsWithinTheOverlapAgrees(t *testing.T) {
	type version struct {
		at          time.Time
		bundle      []byte
		certificate *x509.Certificate
	}
	for name, begin := range map[string]func(*certs.Policy, time.Duration) (after time.Duration){
		"asked for": func(p *certs.Policy, after time.Duration) time.Duration { p.Rotate = after == day; return day },
		"worn out":  func(*certs.Policy, time.Duration) time.Duration { return certs.AuthorityLifetime*2/3 + day },
	} {
		t.Run(name, func(t *testing.T) {
			i := install(t)
			first := i.authorities.Signing.Fingerprint()
			var versions []version
			p := policy()
			from := begin(&p, 0)
			for step := range 40 {
				after := from + time.Duration(step)*10*time.Minute
				p := policy()
				begin(&p, after)
				i.run(t, p, start.Add(after))
				versions = append(versions, version{at: start.Add(after), bundle: i.authorities.Bundle(), certificate: i.certificate(t)})
			}
			for _, reader := range versions {
				for _, server := range versions {
					if lag := reader.at.Sub(server.at).Abs(); lag > overlap-10*time.Minute {
						continue
					}
					if err := verified(t, reader.bundle, server.certificate, reader.at); err != nil {
						t.Fatalf("bundle of %v refuses the certificate of %v: %v", reader.at, server.at, err)
					}
				}
			}
			last := versions[len(versions)-1]
			if i.authorities.Signing.Fingerprint() == first || len(i.authorities.Former) != 0 || i.authorities.Next != nil {
				t.Errorf("the change has not ended: %d former, next %v", len(i.authorities.Former), i.authorities.Next)
			}
			if err := verified(t, last.bundle, versions[0].certificate, last.at); err == nil {
				t.Error("the former authority is still trusted")
			}
		})
	}
}

func TestAdvance_ExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	i := install(t)
	now := start.Add(certs.AuthorityLifetime + day)
	i.run(t, policy(), now)
	if err := verified(t, i.authorities.Bundle(), i.certificate(t), now); err != nil {
		t.Error(err)
	}
}

// Until all bundles were written, the next authority does not sign, however long that takes.
func TestAdvance_UnconfirmedAuthorityNeverSigns(t *testing.T) {
	i := install(t)
	p := policy()
	p.Rotate = true
	next, _, err := i.authorities.Advance(p, start.Add(day))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if next, _, err = next.Advance(policy(), start.Add(30*day)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(next.Signing.CertPEM(), i.authorities.Signing.CertPEM()) || next.Next == nil {
		t.Error("an authority signs that no bundle was known to have")
	}
}

func TestAdvance_GivenAuthority(t *testing.T) {
	brought, err := certs.NewAuthority("brought", certs.AuthorityLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	given := policy()
	given.Given = brought
	i := install(t)
	i.run(t, given, start.Add(day))
	if i.authorities.Next == nil || i.authorities.Signing.Fingerprint() == brought.Fingerprint() {
		t.Fatal("the given authority signs before it was trusted")
	}
	keyless, _, err := stored(t, i.authorities, brought).Advance(policy(), start.Add(day+overlap))
	if err != nil || keyless.Next == nil || keyless.Signing.Fingerprint() == brought.Fingerprint() {
		t.Errorf("the given authority signs without its key, or %v", err)
	}
	for step := range 3 {
		i.run(t, given, start.Add(day+time.Duration(step+1)*overlap))
	}
	if i.authorities.Signing.Fingerprint() != brought.Fingerprint() || len(i.authorities.Former) != 0 {
		t.Errorf("%s signs with %d former ones, want the given one alone", i.authorities.Signing.Fingerprint(), len(i.authorities.Former))
	}
	data, err := i.authorities.Encode(brought)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range data {
		if strings.Contains(string(value), "PRIVATE KEY") {
			t.Errorf("%s has the private key of the given authority", name)
		}
	}
}

// A given authority near its end signs certificates that end with it. They are not renewed again
// and again.
func TestRenewReason_CertificateThatEndsWithItsAuthority(t *testing.T) {
	brought, err := certs.NewAuthority("brought", 30*day, start)
	if err != nil {
		t.Fatal(err)
	}
	p := policy()
	p.Given = brought
	i := &installation{leaf: certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local")}
	i.run(t, p, start)
	if i.run(t, p, start.Add(29*day)) {
		t.Error("a certificate was replaced by one that ends no later")
	}
}

func TestRenewReason_EveryDefectIsNamed(t *testing.T) {
	i := install(t)
	other := install(t)
	signing := i.authorities.Signing
	more := i.leaf
	more.DNSNames = append(slices.Clone(more.DNSNames), "trivet.example.org")
	for name, c := range map[string]struct {
		pair certs.KeyPair
		leaf certs.Leaf
		at   time.Duration
		want string
	}{
		"right":             {pair: i.pair, leaf: i.leaf},
		"missing":           {leaf: i.leaf, want: "missing"},
		"unreadable":        {pair: certs.KeyPair{CertPEM: []byte("x"), KeyPEM: i.pair.KeyPEM}, leaf: i.leaf, want: "cannot be read"},
		"no key":            {pair: certs.KeyPair{CertPEM: i.pair.CertPEM}, leaf: i.leaf, want: "key cannot be read"},
		"other key":         {pair: certs.KeyPair{CertPEM: i.pair.CertPEM, KeyPEM: other.pair.KeyPEM}, leaf: i.leaf, want: "another certificate"},
		"another name":      {pair: i.pair, leaf: more, want: "names or groups"},
		"another group":     {pair: i.pair, leaf: certs.ServerLeaf("gateway", "trivet-system", "cluster.local"), want: "names or groups"},
		"another authority": {pair: other.pair, leaf: i.leaf, want: "another authority"},
		"expires":           {pair: i.pair, leaf: i.leaf, at: 300 * day, want: "expires"},
	} {
		got := signing.RenewReason(c.pair, c.leaf, policy(), start.Add(c.at))
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: RenewReason() = %q, want %q", name, got, c.want)
		}
	}
}

func TestRecover_LostAuthorityStaysTrustedForTheOverlap(t *testing.T) {
	i := install(t)
	before := i.certificate(t)
	lost, err := certs.Recover(i.authorities.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	i.authorities = lost
	p := policy()
	p.Rotate = true
	i.run(t, p, start.Add(day))
	if err := verified(t, i.authorities.Bundle(), before, start.Add(day)); err != nil {
		t.Errorf("the certificates in use: %v", err)
	}
	i.run(t, policy(), start.Add(day+overlap))
	if !i.authorities.Signing.CanSign() || i.certificate(t).Equal(before) {
		t.Error("the new authority does not sign after the overlap")
	}
}

func TestParseAuthority_RefusesWhatCannotSign(t *testing.T) {
	a, b := install(t), install(t)
	key, err := b.authorities.Signing.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"leaf":        {cert: a.pair.CertPEM, key: a.pair.KeyPEM, want: "may not sign"},
		"foreign key": {cert: a.authorities.Bundle(), key: key, want: "does not belong"},
		"key as cert": {cert: key, key: key, want: "only CERTIFICATE"},
		"no key":      {cert: a.authorities.Bundle(), key: []byte("-"), want: "no unencrypted private key"},
		"empty":       {want: "no certificate"},
	} {
		if _, err := certs.ParseAuthority(c.cert, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: ParseAuthority() = %v, want %q", name, err, c.want)
		}
	}
}

func TestServerLeaf_HasTheGroupsThatServersBelieve(t *testing.T) {
	for server, want := range map[string]string{
		"gateway": certs.GatewayGroup, "leasesvc": certs.ServerGroup,
		"bootstrapsvc": certs.ServerGroup, "slicesvc": certs.ServerGroup,
	} {
		leaf := certs.ServerLeaf(server, "trivet-system", "cluster.local")
		if !slices.Equal(leaf.Groups, []string{want}) || leaf.User != "trivet:"+server {
			t.Errorf("%s is %s in %v, want group %s", server, leaf.User, leaf.Groups, want)
		}
	}
	if node := certs.NodeLeaf("a"); node.User != authn.NodeUserPrefix+"a" || !slices.Equal(node.Groups, []string{authn.NodesGroup}) {
		t.Errorf("a node's agent is %s in %v", node.User, node.Groups)
	}
}
