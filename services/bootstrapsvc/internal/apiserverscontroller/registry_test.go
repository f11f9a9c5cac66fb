package apiserverscontroller

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// prefixOf gives each test keys of its own in the shared etcd.
func prefixOf(t *testing.T) string { return "/trivet/" + t.Name() + "/" }

func grant(t *testing.T, client *clientv3.Client, seconds int64) clientv3.LeaseID {
	t.Helper()
	granted, err := client.Grant(t.Context(), seconds)
	if err != nil {
		t.Fatal(err)
	}
	return granted.ID
}

func entryOf(address, replica string) Entry {
	return Entry{
		Address: netip.MustParseAddr(address), Name: address, Port: 6443, Ready: true, Detail: "ok",
		ProbeTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ReplicaID: replica,
	}
}

func byAddress() cmp.Option {
	return cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.IgnoreUnexported(Entry{})}
}

// byContent compares without the fields about leases.
func byContent() cmp.Option {
	return cmp.Options{byAddress(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Entry{}, "Leased")}
}

func wantEntries(t *testing.T, r *Registry, want ...Entry) {
	t.Helper()
	got, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, byContent()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestRegistry_PublishedIsReadBackInOrderWithTTL(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	session := grant(t, client, 60)
	for _, address := range []string{"10.1.0.10", "10.1.0.9", "fd00::1"} {
		replica := "replica-of-" + address
		if err := NewRegistry(client, prefixOf(t), replica).Publish(t.Context(), entryOf(address, replica), session); err != nil {
			t.Fatal(err)
		}
	}
	r := NewRegistry(client, prefixOf(t), "reader")
	wantEntries(t, r, entryOf("10.1.0.9", "replica-of-10.1.0.9"),
		entryOf("10.1.0.10", "replica-of-10.1.0.10"), entryOf("fd00::1", "replica-of-fd00::1"))
	entries, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !entry.Leased || entry.TTL < 30*time.Second || entry.TTL > 60*time.Second {
			t.Errorf("TTL of %s = %s, want the rest of a minute", entry.Name, entry.TTL)
		}
	}
}

func TestRegistry_KeyExpiresWithItsSession(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	session := grant(t, client, 60)
	r := NewRegistry(client, prefixOf(t), "a")
	if err := r.Publish(t.Context(), entryOf("10.1.0.1", "a"), session); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	wantEntries(t, r)
}

func TestRegistry_AddressHasOneWriter(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	first, second := NewRegistry(client, prefixOf(t), "a"), NewRegistry(client, prefixOf(t), "b")
	if err := first.Publish(t.Context(), entryOf("10.1.0.1", "a"), grant(t, client, 60)); err != nil {
		t.Fatal(err)
	}
	if err := second.Publish(t.Context(), entryOf("10.1.0.1", "b"), grant(t, client, 60)); !errors.Is(err, ErrTaken) {
		t.Errorf("publish of a taken address = %v, want %v", err, ErrTaken)
	}
	if err := second.MarkLeft(t.Context(), entryOf("10.1.0.1", "b")); err != nil {
		t.Errorf("mark of another replica's key = %v", err)
	}
	wantEntries(t, first, entryOf("10.1.0.1", "a"))

	// The owner may write again, also under a new session.
	renewed := entryOf("10.1.0.1", "a")
	renewed.Ready = false
	if err := first.Publish(t.Context(), renewed, grant(t, client, 60)); err != nil {
		t.Fatal(err)
	}
	wantEntries(t, first, renewed)
}

func TestRegistry_DeleteStaleDeletesOnlyKeysOfOtherReplicas(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	address := netip.MustParseAddr("10.1.0.1")
	earlier, now := NewRegistry(client, prefixOf(t), "earlier"), NewRegistry(client, prefixOf(t), "now")
	if err := earlier.Publish(t.Context(), entryOf("10.1.0.1", "earlier"), clientv3.NoLease); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if found, err := now.DeleteStale(t.Context(), address); found != want || err != nil {
			t.Fatalf("DeleteStale = %t, %v, want %t", found, err, want)
		}
	}
	if err := now.Publish(t.Context(), entryOf("10.1.0.1", "now"), clientv3.NoLease); err != nil {
		t.Fatal(err)
	}
	if found, err := now.DeleteStale(t.Context(), address); found || err != nil {
		t.Errorf("DeleteStale of the own key = %t, %v, want it kept", found, err)
	}
	wantEntries(t, now, entryOf("10.1.0.1", "now"))
}

func TestRegistry_RaceForAnAddressHasOneWinner(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	const replicas = 8
	errs := make([]error, replicas)
	var race sync.WaitGroup
	for i := range replicas {
		race.Go(func() {
			name := string(rune('a' + i))
			errs[i] = NewRegistry(client, prefixOf(t), name).Publish(t.Context(), entryOf("10.1.0.1", name), clientv3.NoLease)
		})
	}
	race.Wait()
	winners := 0
	for _, err := range errs {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, ErrTaken) && !errors.Is(err, ErrConflict):
			t.Errorf("loser got %v", err)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners, want 1", winners)
	}
}

func TestRegistry_UnreadableKeysAreReturnedAndStay(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	r := NewRegistry(client, prefixOf(t), "a")
	for name, value := range map[string]string{
		"10.1.0.1":           `{"port":6443,"ready":true,"replica":"b","later":{"field":1}}`,
		"10.1.0.2":           `not json`,
		"10.1.0.3":           `{"port":0,"ready":true,"replica":"b"}`,
		"10.1.0.4":           `{"port":"6443","ready":true}`,
		"fd00:0::5":          `{"port":6443,"ready":true,"replica":"b"}`,
		"not-an-\x1baddress": `{"port":6443,"ready":true,"replica":"b"}`,
	} {
		if _, err := client.Put(t.Context(), r.prefix+name, value); err != nil {
			t.Fatal(err)
		}
	}
	wantEntries(t, r,
		Entry{Name: "not-an-\uFFFDaddress", Unreadable: "the key does not end in an IP address"},
		Entry{Address: netip.MustParseAddr("10.1.0.1"), Name: "10.1.0.1", Port: 6443, Ready: true, ReplicaID: "b"},
		Entry{Address: netip.MustParseAddr("10.1.0.2"), Name: "10.1.0.2", Unreadable: "the value is not a JSON object of the known kind"},
		Entry{Address: netip.MustParseAddr("10.1.0.3"), Name: "10.1.0.3", ReplicaID: "b", Unreadable: "the value has port 0, want 1 to 65535"},
		Entry{Address: netip.MustParseAddr("10.1.0.4"), Name: "10.1.0.4", Unreadable: "the value is not a JSON object of the known kind"},
		Entry{Address: netip.MustParseAddr("fd00::5"), Name: "fd00:0::5", Unreadable: "the address in the key is not in canonical form, want fd00::5"},
	)
}

func TestRegistry_EtcdThatDoesNotAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := NewRegistry(client, prefixOf(t), "a")
	if _, err := r.Read(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("read = %v, want %v", err, ErrUnavailable)
	}
	if err := r.Publish(ctx, entryOf("10.1.0.1", "a"), clientv3.NoLease); !errors.Is(err, ErrUnavailable) {
		t.Errorf("publish = %v, want %v", err, ErrUnavailable)
	}
}

func TestRegistry_WatchReportsChangesAndNoRefreshes(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	r := NewRegistry(client, prefixOf(t), "a")
	news := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Watch(ctx, func() { news <- struct{}{} })
	}()
	wantNews := func(what string) {
		t.Helper()
		select {
		case <-news:
		case <-time.After(10 * time.Second):
			t.Fatalf("no call for %s", what)
		}
	}
	publish := func(edit func(*Entry)) {
		t.Helper()
		entry := entryOf("10.1.0.1", "a")
		edit(&entry)
		if err := r.Publish(t.Context(), entry, clientv3.NoLease); err != nil {
			t.Fatal(err)
		}
	}
	wantNews("the beginning")
	publish(func(*Entry) {})
	wantNews("a new server")
	publish(func(e *Entry) { e.ProbeTime = e.ProbeTime.Add(time.Minute) })
	publish(func(e *Entry) { e.Detail = "still ok" })
	publish(func(e *Entry) { e.Ready = false })
	wantNews("a server that is not ready")
	publish(func(e *Entry) { e.Ready, e.Port = false, 8443 })
	wantNews("another port")
	if err := r.MarkLeft(t.Context(), entryOf("10.1.0.1", "a")); err != nil {
		t.Fatal(err)
	}
	wantNews("a server that left")
	cancel()
	<-ended
	if len(news) != 0 {
		t.Errorf("%d more calls than changes", len(news))
	}
}

func TestRegistry_ReplicasThatShareAnAddressHaveTheirOwnKeys(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	address := netip.MustParseAddr("10.1.0.1")
	var replicas []*Registry
	for _, name := range []string{"a", "b"} {
		r := NewSharedRegistry(client, prefixOf(t), name)
		replicas = append(replicas, r)
		for range 2 { // and again
			if err := r.Publish(t.Context(), entryOf("10.1.0.1", name), grant(t, client, 60)); err != nil {
				t.Fatal(err)
			}
		}
		if found, err := r.DeleteStale(t.Context(), address); found || err != nil {
			t.Errorf("DeleteStale by %s = %t, %v, want nothing deleted", name, found, err)
		}
	}
	a, b := entryOf("10.1.0.1", "a"), entryOf("10.1.0.1", "b")
	a.Name, b.Name = "10.1.0.1/a", "10.1.0.1/b"
	wantEntries(t, replicas[0], a, b)
	if err := replicas[0].MarkLeft(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	a.Ready, a.Left = false, true
	wantEntries(t, replicas[1], a, b)
	if key := replicas[1].Key(b); key != prefixOf(t)+"apiservers/10.1.0.1/b" {
		t.Errorf("key = %s", key)
	}
}

func TestRegistry_LeftMarkExpiresOrIsDeletedByTheNextProcess(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	address := netip.MustParseAddr("10.1.0.1")
	r := NewRegistry(client, prefixOf(t), "a")
	if err := r.MarkLeft(t.Context(), entryOf("10.1.0.1", "a")); err != nil {
		t.Errorf("MarkLeft without a key = %v", err)
	}
	wantEntries(t, r)
	session := grant(t, client, 60)
	if err := r.Publish(t.Context(), entryOf("10.1.0.1", "a"), session); err != nil {
		t.Fatal(err)
	}
	if err := r.MarkLeft(t.Context(), entryOf("10.1.0.1", "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	left := entryOf("10.1.0.1", "a")
	left.Ready, left.Left = false, true
	wantEntries(t, r, left)

	entries, err := r.List(t.Context())
	if err != nil || len(entries) != 1 || entries[0].TTL <= 0 || entries[0].TTL > leftTTL {
		t.Errorf("entries = %+v, %v, want one that expires within %s", entries, err, leftTTL)
	}
	next := NewRegistry(client, prefixOf(t), "b")
	if found, err := next.DeleteStale(t.Context(), address); !found || err != nil {
		t.Errorf("DeleteStale by the next process = %t, %v", found, err)
	}
	wantEntries(t, next)
}

func TestRegistry_SecondaryAddressIsKept(t *testing.T) {
	t.Parallel()
	client := testkit.Etcd(t)
	r := NewRegistry(client, prefixOf(t), "a")
	both := entryOf("10.1.0.1", "a")
	both.Secondary = netip.MustParseAddr("fd00::1")
	if err := r.Publish(t.Context(), both, clientv3.NoLease); err != nil {
		t.Fatal(err)
	}
	wantEntries(t, r, both)
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add("10.1.0.1", []byte(`{"port":6443,"ready":true,"replica":"a"}`))
	f.Add("fd00::1%eth0", []byte(`{"port":1e9}`))
	f.Add("", []byte(nil))
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		entry := decodeEntry(name, raw)
		if entry.Ready && (entry.Unreadable != "" || entry.Port < 1 || entry.Port > 65535 || !entry.Address.IsValid()) {
			t.Errorf("ready although unusable: %+v", entry)
		}
		if entry.Unreadable != "" {
			return
		}
		encoded, err := encodeEntry(entry)
		if err != nil {
			t.Fatalf("the decoded entry cannot be encoded: %v", err)
		}
		if diff := cmp.Diff(entry, decodeEntry(name, []byte(encoded)), byAddress()); diff != "" {
			t.Errorf("encoded and decoded again (-before +after):\n%s", diff)
		}
	})
}

// ttlEtcd answers every lease with one TTL.
type ttlEtcd struct {
	Etcd
	ttl int64
}

func (e ttlEtcd) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{TTL: e.ttl}, nil
}

// etcd rounds down: a lease lives in its last second, in which its TTL is 0.
func TestTimeToLive_LastSecondIsNoExpiry(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[int64]time.Duration{-1: 0, 0: time.Second, 1: time.Second, 5: 5 * time.Second} {
		if got, err := timeToLive(t.Context(), ttlEtcd{ttl: ttl}, 1); got != want || err != nil {
			t.Errorf("TTL of a lease that etcd answers with %d = %v, %v, want %v", ttl, got, err, want)
		}
	}
}
