// A PKCS#11 module in front of SoftHSM, for what SoftHSM never does: with LONGSHORE_TOKEN=narrow the token allows one session, with
// LONGSHORE_TOKEN=locked it is locked. It does not answer while the file LONGSHORE_TOKEN_SILENT is there.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "pkcs11go.h"

static CK_FUNCTION_LIST own, *soft;

static int is(const char *what)
{
	const char *v = getenv("LONGSHORE_TOKEN");
	return v && strcmp(v, what) == 0;
}

static CK_RV token(CK_SLOT_ID slot, CK_TOKEN_INFO_PTR info)
{
	CK_RV rv = soft->C_GetTokenInfo(slot, info);
	if (is("narrow"))
		info->ulMaxRwSessionCount = 1;
	return rv;
}

static void silence(void)
{
	const char *file = getenv("LONGSHORE_TOKEN_SILENT");
	while (file && access(file, F_OK) == 0)
		usleep(10000);
}

static CK_RV sign(CK_SESSION_HANDLE session, CK_BYTE_PTR data, CK_ULONG size, CK_BYTE_PTR signature, CK_ULONG_PTR length)
{
	silence();
	return soft->C_Sign(session, data, size, signature, length);
}

static CK_RV login(CK_SESSION_HANDLE session, CK_USER_TYPE user, CK_UTF8CHAR_PTR pin, CK_ULONG size)
{
	silence();
	return is("locked") ? CKR_PIN_LOCKED : soft->C_Login(session, user, pin, size);
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR list)
{
	void *lib = dlopen("/usr/lib/softhsm/libsofthsm2.so", RTLD_NOW | RTLD_LOCAL);
	CK_C_GetFunctionList get = lib ? (CK_C_GetFunctionList)dlsym(lib, "C_GetFunctionList") : 0;
	if (!get || get(&soft) != CKR_OK)
		return CKR_GENERAL_ERROR;
	own = *soft;
	own.C_GetTokenInfo = token;
	own.C_Login = login;
	own.C_Sign = sign;
	*list = &own;
	return CKR_OK;
}
