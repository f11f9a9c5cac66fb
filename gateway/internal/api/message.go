package api

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// field is the name of a field.
type field = protoreflect.Name

// get returns a field of a message, and nil if the message has no such field.
func get(message proto.Message, name field) any {
	m := message.ProtoReflect()
	if desc := m.Descriptor().Fields().ByName(name); desc != nil {
		return m.Get(desc).Interface()
	}
	return nil
}

// set sets a field that is not repeated, if the message has it.
func set(message proto.Message, name field, value any) {
	m := message.ProtoReflect()
	if desc := m.Descriptor().Fields().ByName(name); desc != nil {
		m.Set(desc, protoreflect.ValueOf(value))
	}
}

// appendTo appends messages to a repeated field.
func appendTo[T proto.Message](message proto.Message, name field, items []T) {
	m := message.ProtoReflect()
	list := m.Mutable(m.Descriptor().Fields().ByName(name)).List()
	for _, item := range items {
		list.Append(protoreflect.ValueOfMessage(item.ProtoReflect()))
	}
}

func text(message proto.Message, name field) string {
	value, _ := get(message, name).(string)
	return value
}

func isSet(message proto.Message, name field) bool {
	value, _ := get(message, name).(bool)
	return value
}

// sourcesOf returns the sources of an answer.
func sourcesOf(answer proto.Message) []*metav1.Source {
	if from, ok := answer.(interface{ GetSources() []*metav1.Source }); ok {
		return from.GetSources()
	}
	return nil
}

// itemField returns the field of a response with the items of a list, or the item of an event: that
// of a message with a name.
func itemField(response protoreflect.MessageDescriptor) field {
	fields := response.Fields()
	for i := range fields.Len() {
		item := fields.Get(i).Message()
		if item != nil && item.Fields().ByName("name") != nil {
			return fields.Get(i).Name()
		}
	}
	panic(fmt.Sprintf("%s has no field with items", response.FullName()))
}

// itemsOf returns the items of a list.
func itemsOf(response proto.Message) []merge.Item {
	m := response.ProtoReflect()
	list := m.Get(m.Descriptor().Fields().ByName(itemField(m.Descriptor()))).List()
	items := make([]merge.Item, list.Len())
	for i := range items {
		items[i], _ = list.Get(i).Message().Interface().(merge.Item) // itemField has checked the name
	}
	return items
}

// position has the fields of a request that select no items.
var position = []field{"page_size", "page_token", "resume_token"}

// argumentsOf returns the fields of a request that select items, as text. It is the same for a list
// and for a watch.
func argumentsOf(request proto.Message) string {
	var arguments []string
	request.ProtoReflect().Range(func(desc protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if !slices.Contains(position, desc.Name()) {
			arguments = append(arguments, fmt.Sprintf("%s=%s", desc.Name(), strings.Join(valuesOf(desc, value), "\x01")))
		}
		return true
	})
	slices.Sort(arguments)
	return strings.Join(arguments, "\x00")
}

// valuesOf returns the values of a field as text.
func valuesOf(desc protoreflect.FieldDescriptor, value protoreflect.Value) []string {
	if !desc.IsList() && desc.Message() != nil {
		// Value.String is not the same twice.
		encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(value.Message().Interface()) // it was decoded, so it is valid
		return []string{string(encoded)}
	}
	if !desc.IsList() {
		return []string{value.String()}
	}
	values := make([]string, value.List().Len())
	for i := range values {
		values[i] = value.List().Get(i).String()
	}
	return values
}

// filteredField returns the field of an item that a filter is about: for a repeated filter the one
// in the singular, or one of the same name that has several values. Nil means that there is none.
func filteredField(filter protoreflect.FieldDescriptor, item protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	fields := item.Fields()
	if filter.IsList() {
		if of := fields.ByName(field(strings.TrimSuffix(string(filter.Name()), "s"))); of != nil {
			return of
		}
	}
	return fields.ByName(filter.Name())
}

// selectorOf returns whether the filter of a watch wants an item, or nil if it wants all. A
// repeated field names the accepted values of filteredField; "parent" is a prefix of the name.
func selectorOf(request proto.Message, item protoreflect.MessageDescriptor) func(merge.Item) bool {
	var conditions []func(merge.Item) bool
	request.ProtoReflect().Range(func(desc protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case slices.Contains(position, desc.Name()):
		case desc.Name() == "parent":
			if parent := value.String(); parent != "namespaces/-" {
				conditions = append(conditions, func(item merge.Item) bool { return strings.HasPrefix(item.GetName(), parent+"/") })
			}
		default:
			accepted, of := valuesOf(desc, value), filteredField(desc, item)
			conditions = append(conditions, func(item merge.Item) bool {
				return slices.ContainsFunc(valuesOf(of, item.ProtoReflect().Get(of)), func(one string) bool { return slices.Contains(accepted, one) })
			})
		}
		return true
	})
	if len(conditions) == 0 {
		return nil
	}
	return func(item merge.Item) bool {
		return !slices.ContainsFunc(conditions, func(accepts func(merge.Item) bool) bool { return !accepts(item) })
	}
}

func same(a, b merge.Item) bool { return proto.Equal(a, b) }

// sameBut returns a comparison that ignores some fields, and differences below a second of a time:
// replicas compute wall-clock times from monotonic ones, so that each report of one moment differs
// a little.
func sameBut(ignored []field, unsteady field) func(a, b merge.Item) bool {
	return func(a, b merge.Item) bool {
		b = proto.CloneOf(b)
		if isSteady(a, b, unsteady) {
			copyField(a, b, unsteady)
		}
		for _, name := range ignored {
			copyField(a, b, name)
		}
		return proto.Equal(a, b)
	}
}

func copyField(from, to proto.Message, name field) {
	desc := from.ProtoReflect().Descriptor().Fields().ByName(name)
	if desc == nil {
		return
	}
	if !from.ProtoReflect().Has(desc) {
		to.ProtoReflect().Clear(desc)
		return
	}
	to.ProtoReflect().Set(desc, from.ProtoReflect().Get(desc))
}

// timeOf returns a field with a time; nil if it is absent.
func timeOf(message proto.Message, name field) *timestamppb.Timestamp {
	if m, ok := get(message, name).(protoreflect.Message); ok {
		stamp, _ := m.Interface().(*timestamppb.Timestamp) // a nil pointer for an absent time
		return stamp
	}
	return nil
}

func isSteady(a, b proto.Message, name field) bool {
	first, second := timeOf(a, name), timeOf(b, name)
	return first != nil && second != nil && first.AsTime().Sub(second.AsTime()).Abs() < time.Second
}

// sameSlices ignores a sync that wrote nothing.
func sameSlices(a, b merge.Item) bool {
	before, ok := a.(*slicev1.ServiceSlices)
	after, both := proto.CloneOf(b).(*slicev1.ServiceSlices)
	if !ok || !both {
		return false
	}
	for i, sync := range after.Syncs {
		if i >= len(before.Syncs) {
			break
		}
		last := before.Syncs[i]
		sync.LastSuccessTime = last.LastSuccessTime
		if plan := sync.LastPlan; last.LastPlan != nil && plan != nil && plan.CreateCount+plan.UpdateCount+plan.DeleteCount == 0 {
			sync.LastPlan = last.LastPlan
		}
	}
	return proto.Equal(before, after)
}
