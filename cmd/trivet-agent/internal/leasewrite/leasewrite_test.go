package leasewrite

import (
	"bytes"
	"net/textproto"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

const node = "node-1"

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// lease is a Lease as kube-apiserver has it.
func lease(change ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: "kube-node-lease", UID: "uid", ResourceVersion: "100",
			Labels:            map[string]string{"a": "b"},
			CreationTimestamp: metav1.NewTime(epoch),
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid"}},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", APIVersion: "coordination.k8s.io/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new(node), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: epoch}},
	}
	for _, c := range change {
		c(l)
	}
	return l
}

func renewed(after time.Duration) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: epoch.Add(after)} }
}

func version(v string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.ResourceVersion = v }
}

func header(pairs ...string) textproto.MIMEHeader {
	h := textproto.MIMEHeader{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestRecognise_OwnLeaseAndNothingElse(t *testing.T) {
	const own = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1"
	kubelet := header("Content-Type", Protobuf, "Accept", Protobuf+",application/json")
	for name, c := range map[string]struct {
		method, uri string
		header      textproto.MIMEHeader
		want        Form
	}{
		"kubelet":              {"PUT", own + "?timeout=10s", kubelet, Form{Replace, Protobuf, Protobuf, 10 * time.Second}},
		"JSON":                 {"PUT", own, header("Content-Type", JSON), Form{Kind: Replace, In: JSON, Out: JSON}},
		"merge patch":          {"PATCH", own, header("Content-Type", mergePatch), Form{Kind: Merge, In: mergePatch, Out: JSON}},
		"strategic patch":      {"PATCH", own, header("Content-Type", strategicPatch, "Accept", "*/*"), Form{Kind: Merge, In: strategicPatch, Out: JSON}},
		"JSON patch":           {method: "PATCH", uri: own, header: header("Content-Type", "application/json-patch+json")},
		"apply":                {method: "PATCH", uri: own, header: header("Content-Type", "application/apply-patch+yaml")},
		"CBOR":                 {method: "PUT", uri: own, header: header("Content-Type", "application/cbor")},
		"CBOR asked":           {method: "PUT", uri: own, header: header("Content-Type", JSON, "Accept", "application/cbor,application/json")},
		"table asked":          {method: "PUT", uri: own, header: header("Content-Type", JSON, "Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")},
		"weights":              {method: "PUT", uri: own, header: header("Content-Type", JSON, "Accept", "application/json;q=0.1,"+Protobuf)},
		"two Accepts":          {method: "PUT", uri: own, header: header("Content-Type", JSON, "Accept", JSON, "Accept", Protobuf)},
		"charset":              {method: "PUT", uri: own, header: header("Content-Type", "application/json; charset=utf-16")},
		"compressed":           {method: "PUT", uri: own, header: header("Content-Type", JSON, "Content-Encoding", "gzip")},
		"impersonation":        {method: "PUT", uri: own, header: header("Content-Type", JSON, "Impersonate-User", "x")},
		"impersonated extra":   {method: "PUT", uri: own, header: header("Content-Type", JSON, "Impersonate-Extra-a", "x")},
		"read":                 {method: "GET", uri: own, header: kubelet},
		"delete":               {method: "DELETE", uri: own, header: kubelet},
		"create":               {method: "POST", uri: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", header: kubelet},
		"lower case":           {method: "put", uri: own, header: kubelet},
		"another node":         {method: "PUT", uri: own + "0", header: kubelet},
		"prefix of the node":   {method: "PUT", uri: own[:len(own)-1], header: kubelet},
		"another namespace":    {method: "PUT", uri: "/apis/coordination.k8s.io/v1/namespaces/default/leases/node-1", header: kubelet},
		"another version":      {method: "PUT", uri: "/apis/coordination.k8s.io/v1beta1/namespaces/kube-node-lease/leases/node-1", header: kubelet},
		"trailing slash":       {method: "PUT", uri: own + "/", header: kubelet},
		"status":               {method: "PUT", uri: own + "/status", header: kubelet},
		"double slash":         {method: "PUT", uri: "/apis//coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1", header: kubelet},
		"encoded slash":        {method: "PUT", uri: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease%2Fleases/node-1", header: kubelet},
		"encoded letter":       {method: "PUT", uri: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node%2D1", header: kubelet},
		"dots":                 {method: "PUT", uri: "/apis/coordination.k8s.io/v1/namespaces/x/../kube-node-lease/leases/node-1", header: kubelet},
		"absolute":             {method: "PUT", uri: "https://127.0.0.1" + own, header: kubelet},
		"dry run":              {method: "PUT", uri: own + "?dryRun=All", header: kubelet},
		"validation":           {method: "PUT", uri: own + "?timeout=10s&fieldValidation=Strict", header: kubelet},
		"field manager":        {method: "PUT", uri: own + "?fieldManager=x", header: kubelet},
		"two timeouts":         {method: "PUT", uri: own + "?timeout=10s&timeout=1s", header: kubelet},
		"timeout and more":     {method: "PUT", uri: own + "?timeout=10s;dryRun=All", header: kubelet},
		"encoded timeout":      {method: "PUT", uri: own + "?timeout=10s%26dryRun=All", header: kubelet},
		"negative timeout":     {method: "PUT", uri: own + "?timeout=-1s", header: kubelet},
		"timeout without unit": {method: "PUT", uri: own + "?timeout=10", header: kubelet},
		"empty query":          {method: "PUT", uri: own + "?", header: kubelet},
		"fragment":             {method: "PUT", uri: own + "#x", header: kubelet},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Recognise(node, Request{Method: c.method, URI: c.uri, Header: c.header}); got != c.want {
				t.Errorf("Recognise() = %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestCodec_BothEncodingsKeepTheLease(t *testing.T) {
	for _, mediaType := range []string{JSON, Protobuf} {
		body, err := EncodeLease(mediaType, lease())
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := DecodeLease(mediaType, body)
		if err != nil {
			t.Fatal(err)
		}
		decoded.TypeMeta = metav1.TypeMeta{}
		decoded.CreationTimestamp.Time, decoded.Spec.RenewTime.Time = decoded.CreationTimestamp.UTC(), decoded.Spec.RenewTime.UTC()
		if diff := cmp.Diff(lease(), decoded); diff != "" {
			t.Errorf("%s (-want +got):\n%s", mediaType, diff)
		}
	}
}

func TestCodec_WritesTheBytesOfKubeAPIServer(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for mediaType, upstream := range map[string]runtime.Serializer{
		JSON:     jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{Strict: true}),
		Protobuf: protobuf.NewSerializer(scheme, scheme),
	} {
		typed := lease()
		typed.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		var want bytes.Buffer
		if err := upstream.Encode(typed, &want); err != nil {
			t.Fatal(err)
		}
		got, err := EncodeLease(mediaType, lease())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: EncodeLease() = %q, upstream writes %q", mediaType, got, want.Bytes())
		}
		if decoded, _, err := upstream.Decode(got, nil, nil); err != nil || !equality.Semantic.DeepEqual(decoded, typed) {
			t.Errorf("%s: upstream reads %v, %v", mediaType, decoded, err)
		}
	}
}

func TestDecode_RefusesUnusualBodies(t *testing.T) {
	for name, c := range map[string]struct{ mediaType, body string }{
		"unknown field":     {JSON, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"newField":1}}`},
		"duplicate field":   {JSON, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{},"spec":{}}`},
		"another kind":      {JSON, `{"apiVersion":"coordination.k8s.io/v1","kind":"LeaseList"}`},
		"another version":   {JSON, `{"apiVersion":"coordination.k8s.io/v1beta1","kind":"Lease"}`},
		"two values":        {JSON, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}{}`},
		"empty":             {Protobuf, ``},
		"JSON as protobuf":  {Protobuf, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`},
		"compressed":        {Protobuf, "k8s\x00\x1a\x04gzip"},
		"other protobuf":    {Protobuf, "k8s\x00\n\x09\n\x02v1\x12\x03Pod"},
		"cut off":           {Protobuf, "k8s\x00\n\x1c"},
		"patch with null":   {mergePatch, `{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z","holderIdentity":null}}`},
		"patch of a label":  {mergePatch, `{"metadata":{"labels":{"a":"b"}},"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}`},
		"patch, directive":  {strategicPatch, `{"$patch":"replace"}`},
		"patch, two values": {mergePatch, `{"spec":{}}{}`},
		"patch, other kind": {mergePatch, `{"kind":"Pod"}`},
	} {
		t.Run(name, func(t *testing.T) {
			form := Form{Kind: Replace, In: c.mediaType}
			if c.mediaType == mergePatch || c.mediaType == strategicPatch {
				form.Kind = Merge
			}
			if l, err := Decode(form, []byte(c.body), lease()); err == nil {
				t.Errorf("Decode() = %v, want an error", l)
			}
		})
	}
	if _, err := Decode(Form{Kind: Merge, In: mergePatch}, []byte(`{}`), nil); err == nil {
		t.Error("a patch of an unknown Lease was decoded")
	}
}

func TestJudge_OnlyARenewalBecomesABeat(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*coordinationv1.Lease)
		want   Verdict
	}{
		"renewal":               {renewed(time.Second), Renewal},
		"older version":         {version("1"), Renewal},
		"no version":            {version(""), Renewal},
		"duration":              {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(60)) }, Change},
		"owner":                 {func(l *coordinationv1.Lease) { l.OwnerReferences = nil }, Change},
		"label":                 {func(l *coordinationv1.Lease) { l.Labels = nil }, Change},
		"annotation":            {func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"a": "b"} }, Change},
		"transitions":           {func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32(1)) }, Change},
		"holder":                {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("node-2") }, Unusual},
		"no holder":             {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }, Unusual},
		"name":                  {func(l *coordinationv1.Lease) { l.Name = "node-2" }, Unusual},
		"namespace":             {func(l *coordinationv1.Lease) { l.Namespace = "default" }, Unusual},
		"another object":        {func(l *coordinationv1.Lease) { l.UID = "former" }, Unusual},
		"no time":               {func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }, Unusual},
		"no duration":           {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }, Unusual},
		"empty equals no label": {func(l *coordinationv1.Lease) { l.Annotations = map[string]string{} }, Renewal},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(node, lease(c.change), lease(), lease()); got != c.want {
				t.Errorf("Judge() = %v, want %v", got, c.want)
			}
		})
	}
	// leasesvc writes its own duration: the kubelet has not changed anything.
	ofLeasesvc := lease(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(20)) })
	if got := Judge(node, lease(), ofLeasesvc, lease()); got != Renewal {
		t.Errorf("after a write by leasesvc, Judge() = %v, want %v", got, Renewal)
	}
}

func TestAnswer_IsTheRealLeaseWithTheWrittenSpec(t *testing.T) {
	known := lease(version("200"), func(l *coordinationv1.Lease) { l.Labels["new"] = "label" }, renewed(-time.Minute))
	got := Answer(lease(renewed(time.Minute)), known)
	want := lease(version("200"), func(l *coordinationv1.Lease) { l.Labels["new"] = "label" }, renewed(time.Minute))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The kubelet has read a newer Lease than the endpoint.
	if got := Answer(lease(version("300")), known).ResourceVersion; got != "300" {
		t.Errorf("resourceVersion is %s, want 300", got)
	}
	if diff := cmp.Diff(lease(), Answer(lease(), nil)); diff != "" {
		t.Errorf("without a known Lease (-want +got):\n%s", diff)
	}
}

func TestRebase_AppliesWhatTheKubeletChangedToTheRealLease(t *testing.T) {
	known := lease(version("200"), renewed(time.Minute), func(l *coordinationv1.Lease) {
		l.Labels["new"] = "label"
		l.Spec.LeaseDurationSeconds = new(int32(20))
	})
	got := Rebase(lease(renewed(time.Second)), known, lease())
	// The time of leasesvc is later than that of the kubelet, and readers must see progress.
	want := lease(version("200"), renewed(time.Minute+time.Microsecond), func(l *coordinationv1.Lease) { l.Labels["new"] = "label" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = Rebase(lease(renewed(time.Hour), func(l *coordinationv1.Lease) { l.Labels = map[string]string{"mine": "x"} }), known, lease())
	want = lease(version("200"), renewed(time.Hour), func(l *coordinationv1.Lease) { l.Labels = map[string]string{"mine": "x"} })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with a changed label (-want +got):\n%s", diff)
	}
}

// FuzzRecognise checks that a recognised target is one that kube-apiserver reads in the same way:
// the decoded and cleaned path is that of the node's Lease and the query has a timeout only.
func FuzzRecognise(f *testing.F) {
	const own = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1"
	for _, seed := range []string{own, own + "?timeout=10s", own + "?timeout=10s&dryRun=All", own + "?timeout=1%30s", own + "/", "/" + own, own + "?timeout=1h2m;x=y", own + "?timeout=+1s"} {
		f.Add("PUT", seed, JSON, "*/*")
		f.Add("PATCH", seed, mergePatch, Protobuf)
	}
	f.Fuzz(func(t *testing.T, method, uri, contentType, accept string) {
		form := Recognise(node, Request{Method: method, URI: uri, Header: header("Content-Type", contentType, "Accept", accept)})
		if form.Kind == Other {
			return
		}
		u, err := url.ParseRequestURI(uri)
		if err != nil {
			t.Fatalf("recognised %q, which is no request target: %v", uri, err)
		}
		query, err := url.ParseQuery(u.RawQuery)
		if err != nil || len(query) > 1 || len(query) == 1 && len(query["timeout"]) != 1 || u.Path != own || u.EscapedPath() != own || u.Fragment != "" {
			t.Fatalf("recognised %q: path %q, query %v (%v)", uri, u.Path, query, err)
		}
	})
}

// FuzzDecode checks that no body fails in another way than by an error, and that a decoded Lease
// has an answer in both encodings.
func FuzzDecode(f *testing.F) {
	for _, mediaType := range []string{JSON, Protobuf} {
		body, err := EncodeLease(mediaType, lease())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(mediaType == Protobuf, false, body)
	}
	f.Add(false, true, []byte(`{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}`))
	f.Fuzz(func(t *testing.T, binary, isPatch bool, body []byte) {
		form := Form{Kind: Replace, In: JSON}
		if binary {
			form.In = Protobuf
		}
		if isPatch {
			form = Form{Kind: Merge, In: mergePatch}
		}
		write, err := Decode(form, body, lease())
		if err != nil {
			return
		}
		if Judge(node, write, lease(), lease()) == Unusual {
			return
		}
		for _, mediaType := range []string{JSON, Protobuf} {
			for _, l := range []*coordinationv1.Lease{Answer(write, lease()), Rebase(write, lease(), nil)} {
				encoded, err := EncodeLease(mediaType, l)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := DecodeLease(mediaType, encoded); err != nil {
					t.Fatalf("%s: the answer cannot be decoded: %v", mediaType, err)
				}
				if l.UID != "uid" || l.Name != node {
					t.Fatalf("the answer is another object: %v", l)
				}
			}
		}
	})
}

// A newer kubelet may set a field that this version does not know. A renewal that dropped it would
// answer for a change that nothing has stored.
func TestDecode_RefusesAFieldThatItDoesNotKnow(t *testing.T) {
	body, err := EncodeLease(Protobuf, lease())
	if err != nil {
		t.Fatal(err)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[4:]); err != nil {
		t.Fatal(err)
	}
	envelope.Raw = append(envelope.Raw, 0x7a, 1, 'x') // field 15 of Lease
	changed, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Decode(Form{Kind: Replace, In: Protobuf}, append(body[:4:4], changed...), lease()); err == nil {
		t.Errorf("Decode() = %v, want an error", l)
	}
}
