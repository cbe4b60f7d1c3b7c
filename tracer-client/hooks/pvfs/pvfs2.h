/* Sizes and signatures of OrangeFS's client interface (libpvfs2, 2.9 and 2.10, 64 bits), as far as
 * the hook needs them. Written for MIOT. tests/programs/pvfs/library.c, the replacement of the
 * library in the tests, has the same. */
#ifndef MIOT_PVFS2_H
#define MIOT_PVFS2_H

#include <stdarg.h>
#include <stdint.h>

typedef int32_t PVFS_error;
typedef int32_t PVFS_fs_id;
typedef int64_t PVFS_size;
typedef int64_t PVFS_sys_op_id;
typedef uint64_t PVFS_ds_position;
typedef struct PINT_Request *PVFS_Request;
typedef struct PVFS_hint_s *PVFS_hint;

/* Bit of every error. The low 7 bits of an error represent an errno. */
#define PVFS_ERROR_BIT (1 << 30)
/* Bit of an error that has no errno. */
#define PVFS_NON_ERRNO_ERROR_BIT (1 << 29)
#define PVFS_ENOSYS (PVFS_ERROR_BIT | 25)
#define PVFS_ECANCEL (PVFS_ERROR_BIT | PVFS_NON_ERRNO_ERROR_BIT | 1)

enum PVFS_io_type { PVFS_IO_READ = 1, PVFS_IO_WRITE = 2 };

typedef struct {
    uint64_t handle;
    PVFS_fs_id fs_id;
    int32_t pad;
} PVFS_object_ref;

/* Passed by value: only its size matters. */
typedef struct {
    uint64_t words[17];
} PVFS_sys_attr;

typedef struct {
    uint32_t userid;
    uint32_t num_groups;
    void *rest[7];
} PVFS_credential;

typedef struct {
    void *buffer;
    int32_t buffer_sz, read_sz;
} PVFS_ds_keyval;

/* Responses, as far as the hook reads them. */
typedef struct {
    PVFS_object_ref ref;
    char *error_path;
    int error_path_size;
} PVFS_sysresp_lookup;
typedef struct {
    PVFS_object_ref ref;
} PVFS_sysresp_create, PVFS_sysresp_mkdir, PVFS_sysresp_symlink;
typedef struct {
    PVFS_sys_attr attr;
} PVFS_sysresp_getattr;
typedef struct {
    PVFS_size total_completed;
} PVFS_sysresp_io;
typedef struct {
    PVFS_ds_position token;
    void *dirent_array;
    uint32_t pvfs_dirent_outcount;
    uint64_t directory_version;
} PVFS_sysresp_readdir;
typedef struct PVFS_sysresp_readdirplus_s {
    PVFS_sysresp_readdir readdir;
    void *stat_err_array, *attr_array;
} PVFS_sysresp_readdirplus;
typedef struct PVFS_sysresp_statfs_s PVFS_sysresp_statfs;
typedef struct PVFS_sysresp_geteattr_s PVFS_sysresp_geteattr;
typedef struct {
    PVFS_ds_position token;
    int32_t nkey;
    PVFS_ds_keyval *key_array;
} PVFS_sysresp_listeattr;
typedef struct PVFS_sys_dist_s PVFS_sys_dist;
typedef struct PVFS_sys_layout_s PVFS_sys_layout;

_Static_assert(sizeof(PVFS_object_ref) == 16 && sizeof(PVFS_sys_attr) == 136 && sizeof(PVFS_sysresp_lookup) == 32 &&
                   sizeof(PVFS_credential) == 64 && sizeof(PVFS_sysresp_readdirplus) == 48,
               "sizes differ from those of OrangeFS 2.10 on 64 bits");

/* Parameters of most calls. The names of the others are MIOT's own. */
#define PVFS_REF PVFS_object_ref ref
#define PVFS_CREDENTIAL const PVFS_credential *credential
#define PVFS_HINTS PVFS_hint hints
#define PVFS_POSTED PVFS_sys_op_id *op_id, PVFS_hint hints, void *user_ptr

PVFS_error PVFS_sys_io(PVFS_REF, PVFS_Request file_req, int64_t file_req_offset, void *buffer, PVFS_Request mem_req,
                       PVFS_CREDENTIAL, PVFS_sysresp_io *resp, enum PVFS_io_type type, PVFS_HINTS);
PVFS_error PVFS_isys_io(PVFS_REF, PVFS_Request file_req, int64_t file_req_offset, void *buffer, PVFS_Request mem_req,
                        PVFS_CREDENTIAL, PVFS_sysresp_io *resp, enum PVFS_io_type type, PVFS_POSTED);
PVFS_error PVFS_sys_lookup(PVFS_fs_id fs_id, char *name, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp,
                           int32_t follow_link, PVFS_HINTS);
PVFS_error PVFS_sys_ref_lookup(PVFS_fs_id fs_id, char *name, PVFS_REF, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp,
                               int32_t follow_link, PVFS_HINTS);
PVFS_error PVFS_isys_ref_lookup(PVFS_fs_id fs_id, char *name, PVFS_REF, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp,
                                int32_t follow_link, PVFS_POSTED);
PVFS_error PVFS_sys_getattr(PVFS_REF, uint32_t mask, PVFS_CREDENTIAL, PVFS_sysresp_getattr *resp, PVFS_HINTS);
PVFS_error PVFS_isys_getattr(PVFS_REF, uint32_t mask, PVFS_CREDENTIAL, PVFS_sysresp_getattr *resp, PVFS_POSTED);
PVFS_error PVFS_sys_setattr(PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_HINTS);
PVFS_error PVFS_isys_setattr(PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_POSTED);
PVFS_error PVFS_sys_create(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                           PVFS_sysresp_create *resp, PVFS_sys_layout *layout, PVFS_HINTS);
PVFS_error PVFS_isys_create(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                            PVFS_sys_layout *layout, PVFS_sysresp_create *resp, PVFS_POSTED);
PVFS_error PVFS_sys_mkdir(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_mkdir *resp,
                          PVFS_HINTS);
PVFS_error PVFS_isys_mkdir(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_mkdir *resp,
                           PVFS_POSTED);
PVFS_error PVFS_sys_symlink(char *name, PVFS_REF, char *target, PVFS_sys_attr attr, PVFS_CREDENTIAL,
                            PVFS_sysresp_symlink *resp, PVFS_HINTS);
PVFS_error PVFS_isys_symlink(char *name, PVFS_REF, char *target, PVFS_sys_attr attr, PVFS_CREDENTIAL,
                             PVFS_sysresp_symlink *resp, PVFS_POSTED);
PVFS_error PVFS_sys_remove(char *name, PVFS_REF, PVFS_CREDENTIAL, PVFS_HINTS);
PVFS_error PVFS_isys_remove(char *name, PVFS_REF, PVFS_CREDENTIAL, PVFS_POSTED);
PVFS_error PVFS_sys_rename(char *name, PVFS_REF, char *new_name, PVFS_object_ref new_ref, PVFS_CREDENTIAL, PVFS_HINTS);
PVFS_error PVFS_isys_rename(char *name, PVFS_REF, char *new_name, PVFS_object_ref new_ref, PVFS_CREDENTIAL,
                            PVFS_POSTED);
PVFS_error PVFS_sys_readdir(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL,
                            PVFS_sysresp_readdir *resp, PVFS_HINTS);
PVFS_error PVFS_isys_readdir(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL,
                             PVFS_sysresp_readdir *resp, PVFS_POSTED);
PVFS_error PVFS_sys_readdirplus(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, uint32_t mask,
                                PVFS_sysresp_readdirplus *resp, PVFS_HINTS);
PVFS_error PVFS_isys_readdirplus(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, uint32_t mask,
                                 PVFS_sysresp_readdirplus *resp, PVFS_POSTED);
PVFS_error PVFS_sys_truncate(PVFS_REF, PVFS_size size, PVFS_CREDENTIAL, PVFS_HINTS);
PVFS_error PVFS_isys_truncate(PVFS_REF, PVFS_size size, PVFS_CREDENTIAL, PVFS_POSTED);
PVFS_error PVFS_sys_flush(PVFS_REF, PVFS_CREDENTIAL, PVFS_HINTS);
PVFS_error PVFS_isys_flush(PVFS_REF, PVFS_CREDENTIAL, PVFS_POSTED);
PVFS_error PVFS_sys_statfs(PVFS_fs_id fs_id, PVFS_CREDENTIAL, PVFS_sysresp_statfs *resp, PVFS_HINTS);
PVFS_error PVFS_isys_statfs(PVFS_fs_id fs_id, PVFS_CREDENTIAL, PVFS_sysresp_statfs *resp, PVFS_POSTED);
PVFS_error PVFS_sys_geteattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, PVFS_HINTS);
PVFS_error PVFS_isys_geteattr_list(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key,
                                   PVFS_sysresp_geteattr *resp, PVFS_POSTED);
PVFS_error PVFS_sys_geteattr_list(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key,
                                  PVFS_sysresp_geteattr *resp, PVFS_HINTS);
PVFS_error PVFS_sys_seteattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, int32_t flags,
                             PVFS_HINTS);
PVFS_error PVFS_isys_seteattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, int32_t flags,
                              PVFS_POSTED);
PVFS_error PVFS_sys_seteattr_list(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key, PVFS_ds_keyval *value,
                                  int32_t flags, PVFS_HINTS);
PVFS_error PVFS_isys_seteattr_list(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key,
                                   PVFS_ds_keyval *value, int32_t flags, PVFS_POSTED);
PVFS_error PVFS_sys_deleattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_HINTS);
PVFS_error PVFS_isys_deleattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_POSTED);
PVFS_error PVFS_sys_listeattr(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL,
                              PVFS_sysresp_listeattr *resp, PVFS_HINTS);
PVFS_error PVFS_isys_listeattr(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL,
                               PVFS_sysresp_listeattr *resp, PVFS_POSTED);

int PVFS_sys_testany(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms);
int PVFS_sys_testsome(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms);
int PVFS_sys_wait(PVFS_sys_op_id op_id, const char *what, int *error);

int PVFS_Request_size(PVFS_Request request, PVFS_size *size);
PVFS_error PVFS_get_errno_mapping(PVFS_error error);

int __gossip_debug(uint64_t mask, char prefix, const char *format, ...);
int __gossip_debug_va(uint64_t mask, char prefix, const char *format, va_list list);

#endif
