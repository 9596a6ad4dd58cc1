package trace

import (
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of OTLP 1.x that never change: opentelemetry/proto/{trace,common,resource}/v1.
const (
	requestResourceSpans protowire.Number = 1

	resourceSpansResource protowire.Number = 1
	resourceSpansScope    protowire.Number = 2
	resourceAttributes    protowire.Number = 1

	scopeSpansScope protowire.Number = 1
	scopeSpansSpan  protowire.Number = 2
	scopeName       protowire.Number = 1
	scopeVersion    protowire.Number = 2

	spanTrace      protowire.Number = 1
	spanID         protowire.Number = 2
	spanParent     protowire.Number = 4
	spanName       protowire.Number = 5
	spanKind       protowire.Number = 6
	spanBegin      protowire.Number = 7
	spanEnd        protowire.Number = 8
	spanAttributes protowire.Number = 9
	spanStatus     protowire.Number = 15

	statusMessage protowire.Number = 2
	statusCode    protowire.Number = 3

	keyValueKey    protowire.Number = 1
	keyValueValue  protowire.Number = 2
	anyValueString protowire.Number = 1
	anyValueInt    protowire.Number = 3

	kindInternal = 1
	codeError    = 2
)

const scope = "github.com/longshore-dev/longshore/agent"

// message appends a field that is a message.
func message(b []byte, n protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), m)
}

func text(b []byte, n protowire.Number, s string) []byte {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), strings.ToValidUTF8(s, ""))
}

func number(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func instant(b []byte, n protowire.Number, t time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, n, protowire.Fixed64Type), uint64(max(0, t.UnixNano())))
}

func (a attribute) encode() []byte {
	value := text(nil, anyValueString, a.text)
	if a.text == "" {
		value = number(nil, anyValueInt, a.number)
	}
	return message(text(nil, keyValueKey, a.key), keyValueValue, value)
}

func (s span) encode() []byte {
	b := message(nil, spanTrace, s.trace[:])
	b = message(b, spanID, s.id[:])
	if s.parent != ([8]byte{}) {
		b = message(b, spanParent, s.parent[:])
	}
	b = number(text(b, spanName, s.name), spanKind, kindInternal)
	b = instant(instant(b, spanBegin, s.begin), spanEnd, s.end)
	for _, a := range s.attributes {
		b = message(b, spanAttributes, a.encode())
	}
	if s.failure != "" {
		b = message(b, spanStatus, number(text(nil, statusMessage, s.failure), statusCode, codeError))
	}
	return b
}

// request is an ExportTraceServiceRequest with the spans of one resource.
func request(resource []attribute, version string, spans []span) []byte {
	var about []byte
	for _, a := range resource {
		about = message(about, resourceAttributes, a.encode())
	}
	all := message(nil, scopeSpansScope, text(text(nil, scopeName, scope), scopeVersion, version))
	for _, s := range spans {
		all = message(all, scopeSpansSpan, s.encode())
	}
	return message(nil, requestResourceSpans, message(message(nil, resourceSpansResource, about), resourceSpansScope, all))
}
