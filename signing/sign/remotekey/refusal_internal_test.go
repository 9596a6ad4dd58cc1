package remotekey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	vault "github.com/hashicorp/vault/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// awsError is what AWS's client says: a status, and mostly a name.
type awsError struct {
	code int
	name string
}

func (e awsError) Error() string       { return e.name }
func (e awsError) HTTPStatusCode() int { return e.code }
func (e awsError) ErrorCode() string   { return e.name }

type noToken struct{ error }

func (noToken) NonRetriable() {}

// What a service refuses for good is not called temporary, whichever service it is.
func TestAnswered(t *testing.T) {
	all := []error{fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrNotFound, fault.ErrInvalid}
	for _, c := range []struct {
		err  error
		want error // nil: none of ours
	}{
		{&vault.ResponseError{StatusCode: 403}, fault.ErrDenied},
		{&vault.ResponseError{StatusCode: 400}, fault.ErrInvalid},
		{&vault.ResponseError{StatusCode: 429}, fault.ErrTemporary},
		{&vault.ResponseError{StatusCode: 503}, fault.ErrTemporary},
		{&azcore.ResponseError{StatusCode: 401}, fault.ErrUnauthenticated},
		{&azcore.ResponseError{StatusCode: 404}, fault.ErrNotFound},
		{&azcore.ResponseError{StatusCode: 500}, fault.ErrTemporary},
		{noToken{errors.New("no token")}, fault.ErrUnauthenticated},
		{awsError{400, "AccessDeniedException"}, fault.ErrDenied},
		{awsError{400, "NotFoundException"}, fault.ErrNotFound},
		{awsError{400, "DisabledException"}, fault.ErrInvalid},
		{awsError{400, "ThrottlingException"}, fault.ErrTemporary},
		{awsError{400, "ExpiredTokenException"}, fault.ErrUnauthenticated},
		{awsError{500, "KMSInternalException"}, fault.ErrTemporary},
		{status.Error(codes.PermissionDenied, "no"), fault.ErrDenied},
		{status.Error(codes.Unauthenticated, "who"), fault.ErrUnauthenticated},
		{status.Error(codes.NotFound, "what"), fault.ErrNotFound},
		{status.Error(codes.InvalidArgument, "how"), fault.ErrInvalid},
		{status.Error(codes.Unavailable, "later"), fault.ErrTemporary},
		{status.Error(codes.ResourceExhausted, "slowly"), fault.ErrTemporary},
		{&url.Error{Op: "Get", URL: "https://vault.example", Err: io.ErrUnexpectedEOF}, fault.ErrTemporary},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, fault.ErrTemporary},
		{context.DeadlineExceeded, fault.ErrTemporary},
		{context.Canceled, nil},
		{&url.Error{Op: "Get", URL: "https://vault.example", Err: context.Canceled}, nil},
		{errors.New("the plugin said something"), nil},
	} {
		err := answered(fmt.Errorf("sign: %w", c.err))
		for _, kind := range all {
			if errors.Is(err, kind) != (kind == c.want) {
				t.Errorf("%v is %v, want %v", c.err, err, c.want)
			}
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%v lost what was said", err)
		}
	}
}
